"""The pod's application over ASGI: inference here, all else by the framework.

A body's length is checked while it is received, and a client that disconnects cancels its request.
V1 requests that are CloudEvents 1.0 are answered in kind, as KServe's servers answer them: in
binary mode (attributes in headers `ce-…`) or structured mode (one JSON document).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import orjson
from starlette.responses import Response
from starlette.routing import Match

from common.inference_protocol.bodies import EncodedBody
from common.pod_secret import HEADER, PodSecret
from runtime.errors import Unauthorized
from runtime.protocols.exchange import (
    HttpResponse,
    common_headers,
    error_response,
    headers_of,
    kserve_error,
    provenance_headers,
    receive_body,
    respond,
    stage_of,
    while_connected,
)
from runtime.serving.predict_service import PredictService
from runtime.serving.repository import Repository
from runtime.wire import PROTOBUF, WireProtocol, parse_request_head

if TYPE_CHECKING:
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


OPEN_PATHS: Final = frozenset({"/", "/metrics", "/v2/health/live", "/v2/health/ready"})
"""For the kubelet's probes and for Prometheus, which have no secret."""
OPEN_METHODS: Final = frozenset({"GET", "HEAD"})
REFUSAL: Final = (
    f"pods accept requests of their gateway and autoscaler only: the header {HEADER} must have a"
    " secret of --pod-secret-file; send requests to the gateway"
)
_HEADER: Final = HEADER.encode()
STRUCTURED: Final = "application/cloudevents+json"
_REQUIRED: Final = ("ce-specversion", "ce-id", "ce-source", "ce-type")
_TYPE: Final = "io.kserve.inference.response"
_SOURCE: Final = "io.kserve.inference."


class PodApplication:
    """All of a pod's HTTP: refuses who lacks the shared secret, before anything is read.

    Routes to ASGI applications go without the framework, since these send the response to every
    error themselves: its five layers and a search through all routes take seven times as long.
    What is sent to a client that is gone is dropped, as uvicorn does: uvloop closes a connection a
    turn of the loop before it tells uvicorn's protocol, and a write between fails.
    """

    def __init__(self, framework: ASGIApp, routes: Sequence[Route], secret: PodSecret) -> None:
        """Routes in order; all that match none of those with ASGI endpoints go to `framework`."""
        self._framework = framework
        self._routes = [route for route in routes if route.app is route.endpoint]
        self._secret, self._checks = secret, secret.is_required

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_if_open(message: Message) -> None:
            try:
                await send(message)
            except RuntimeError as error:
                if "the handler is closed" not in str(error):
                    raise

        if self._checks and not self._is_allowed(scope):
            status, body, headers = error_response(Unauthorized(REFUSAL))
            await Response(body, status, dict(headers))(scope, receive, send_if_open)
            return
        for route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                scope.update(found)
                await route.app(scope, receive, send_if_open)
                return
        await self._framework(scope, receive, send_if_open)

    def _is_allowed(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == _HEADER), None)
        if given is not None and self._secret.accepts(given):
            return True
        return scope["path"] in OPEN_PATHS and scope["method"] in OPEN_METHODS


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
        head = parse_request_head(parameters["model"], headers)
        if "version" in parameters:  # selects the model's generation
            spec = await self.repository.find(parameters["model"], parameters["version"])
            head = replace(head, generation=spec.generation)
        self.service.in_flight.check_admission(head)
        body = await receive_body(headers, receive, self.max_body_bytes)
        work = self.service.predict(head, _protocol_of(self.protocol, headers), body)
        result = await while_connected(receive, work)
        encoded = result.body
        if self.protocol is WireProtocol.V1 and is_event(headers):
            encoded = answer_in_kind(headers, head.response_model_name, encoded)
        await response.send(encoded.content, [*encoded.headers, *provenance_headers(result)])


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
