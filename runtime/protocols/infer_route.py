"""The inference routes: raw ASGI, so that a body's length is checked while it is received.

A client that disconnects cancels its request, unless the request's inference has begun.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

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
        work = self.service.predict(head, protocol_of(self.protocol, headers), body)
        result = await while_connected(receive, work)
        await response.send(
            result.body.content, [*result.body.headers, *provenance_headers(result)]
        )

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


def protocol_of(protocol: WireProtocol, headers: Mapping[str, str]) -> WireProtocol:
    """V2's messages in protobuf by their content type; they are the gateway's gRPC calls."""
    is_message = protocol is WireProtocol.V2 and headers.get("content-type") == PROTOBUF
    return WireProtocol.GRPC_V2 if is_message else protocol
