"""The inference routes: raw ASGI, so that a body's length is checked while it is received.

A client that disconnects cancels its request, unless the request's inference has begun.
V1 requests that are CloudEvents 1.0 are answered in kind, as KServe's servers answer them: in
binary mode (attributes in headers `ce-…`) or structured mode (one JSON document).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import orjson

from common.inference_protocol.bodies import EncodedBody
from runtime.protocols.client import receive_body, while_connected
from runtime.protocols.response import (
    HttpResponse,
    common_headers,
    headers_of,
    kserve_error,
    provenance_headers,
    respond,
    stage_of,
)
from runtime.wire.bodies import PROTOBUF, WireProtocol
from runtime.wire.request_head import RequestHead, parse_request_head

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Receive, Scope, Send

    from runtime.serving.predict_service import PredictService
    from runtime.serving.repository import Repository


STRUCTURED: Final = "application/cloudevents+json"
_REQUIRED: Final = ("ce-specversion", "ce-id", "ce-source", "ce-type")
_TYPE: Final = "io.kserve.inference.response"
_SOURCE: Final = "io.kserve.inference."


@dataclass(frozen=True, slots=True)
class InferRoute:
    """One protocol's inference endpoint, as an ASGI application."""

    service: PredictService
    repository: Repository
    protocol: WireProtocol
    pod_name: str
    max_body_bytes: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        response = HttpResponse(send, common_headers(self.pod_name, headers), kserve_error)
        work = self._serve(scope["path_params"], headers, receive, response)
        await respond(response, stage_of(headers), work)

    async def _serve(
        self,
        parameters: Mapping[str, str],
        headers: Mapping[str, str],
        receive: Receive,
        response: HttpResponse,
    ) -> None:
        head = await self._parse_head(parameters, headers)
        self.service.in_flight.check_admission(head)
        body = await receive_body(headers, receive, self.max_body_bytes)
        work = self.service.predict(head, _protocol_of(self.protocol, headers), body)
        result = await while_connected(receive, work)
        encoded = result.body
        if self.protocol is WireProtocol.V1 and is_event(headers):
            encoded = answer_in_kind(headers, head.response_model_name, encoded)
        await response.send(encoded.content, [*encoded.headers, *provenance_headers(result)])

    async def _parse_head(
        self, parameters: Mapping[str, str], headers: Mapping[str, str]
    ) -> RequestHead:
        """The head of a request; a version in the path selects the model's generation."""
        model = parameters["model"]
        head = parse_request_head(model, headers)
        if "version" not in parameters:
            return head
        spec = await self.repository.find(model, parameters["version"])
        return replace(head, generation=spec.generation)


def _protocol_of(protocol: WireProtocol, headers: Mapping[str, str]) -> WireProtocol:
    """V2's messages in protobuf by their content type; they are the gateway's gRPC calls."""
    is_message = protocol is WireProtocol.V2 and headers.get("content-type") == PROTOBUF
    return WireProtocol.GRPC_V2 if is_message else protocol


def is_event(headers: Mapping[str, str]) -> bool:
    """True for an event in either mode."""
    return _is_binary(headers) or _is_structured(headers)


def _is_binary(headers: Mapping[str, str]) -> bool:
    return "ce-specversion" in headers and all(name in headers for name in _REQUIRED)


def _is_structured(headers: Mapping[str, str]) -> bool:
    return headers.get("content-type", "").startswith(STRUCTURED)


def answer_in_kind(headers: Mapping[str, str], model_name: str, body: EncodedBody) -> EncodedBody:
    """The response as an event, in the mode of the request with these headers."""
    attributes = {
        "specversion": "1.0",
        "id": str(uuid.uuid4()),
        "source": f"{_SOURCE}{model_name}",
        "type": _TYPE,
        "time": datetime.now(UTC).isoformat(),
    }
    if _is_binary(headers):
        named = tuple((f"ce-{name}", value) for name, value in attributes.items())
        return EncodedBody(body.content, (*body.headers, *named))
    content = orjson.dumps({**attributes, "data": orjson.Fragment(body.content)})
    return EncodedBody(content, (("content-type", STRUCTURED),))
