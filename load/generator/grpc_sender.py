"""Requests over gRPC in the Open Inference Protocol, to a pod or KServe predictor."""

from collections.abc import Callable
from typing import Final

import grpc

from common.inference_protocol.grpc_messages import INFERENCE, encode_request_message, messages
from load.generator.bodies import RequestBodies
from load.generator.records import RequestResult
from load.generator.settings import SERVER_NAME, Content, Layout, RunSettings
from load.generator.target import TargetUrl, inference_path
from load.generator.trace_arrivals import TraceArrival

_INFER: Final = f"/{INFERENCE}/ModelInfer"
_SERVER_METADATA: Final = f"/{INFERENCE}/ServerMetadata"
_METADATA_TIMEOUT_S: Final = 10.0
_HTTP_STATUS: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNKNOWN: 500,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
"""Other codes become 0, no response: UNAVAILABLE can mean that no server was reached."""


class GrpcSender:
    """Sends requests of one worker; see `load.generator.open_loop.Sender`."""

    def __init__(
        self, settings: RunSettings, target: TargetUrl, now_s: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._now_s = now_s
        self._bodies = RequestBodies(settings.protocol, settings.seed)
        self._channel = _channel(target)
        self._infer = self._channel.unary_unary(
            _INFER, response_deserializer=messages.ModelInferResponse.FromString
        )

    async def send(
        self, arrival: TraceArrival, content: Content, request_id: str, result: RequestResult
    ) -> None:
        """Fill in the result of one request; every failure becomes its error."""
        request = self._request(arrival, content, request_id)
        policy = self._settings.policy
        headers = [("x-request-id", request_id), *self._settings.credentials.items()]
        headers += [] if policy is None else [("x-pilotlight-policy", policy)]
        result.sent_s = self._now_s()
        call = self._infer(request, metadata=tuple(headers), timeout=arrival.deadline_s)
        try:
            await call
            result.status = 200
        except grpc.aio.AioRpcError as error:
            result.status = _HTTP_STATUS.get(error.code(), 0)
            result.fail(f"gRPC {error.code().name}: {error.details()}")
        finally:
            result.finished_s = self._now_s()
        result.first_byte_s = result.finished_s if result.status else None
        pairs = [*(await call.initial_metadata() or ()), *(await call.trailing_metadata() or ())]
        result.read_headers((_bytes(name), _bytes(value)) for name, value in pairs)

    def _request(self, arrival: TraceArrival, content: Content, request_id: str) -> bytes:
        settings = self._settings
        tensors = self._bodies.tensors(arrival, content)
        name = inference_path(
            settings.protocol,
            settings.layout,
            tenant=arrival.tenant,
            model=arrival.model,
            is_generation=False,
        )
        return encode_request_message(tensors, model_name=name, request_id=request_id)

    async def close(self) -> None:
        await self._channel.close()


def _channel(target: TargetUrl) -> grpc.aio.Channel:
    address = f"{target.host}:{target.port}"
    options = [("grpc.max_receive_message_length", -1)]
    if target.is_encrypted:
        return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(), options)
    return grpc.aio.insecure_channel(address, options)


async def layout_of(target: TargetUrl) -> Layout:
    """The layout by the target's server metadata; `PLAIN` if no metadata arrive in time."""
    async with _channel(target) as channel:
        server_metadata = channel.unary_unary(
            _SERVER_METADATA,
            request_serializer=messages.ServerMetadataRequest.SerializeToString,
            response_deserializer=messages.ServerMetadataResponse.FromString,
        )
        try:
            server = await server_metadata(
                messages.ServerMetadataRequest(), timeout=_METADATA_TIMEOUT_S
            )
        except grpc.aio.AioRpcError:
            return Layout.PLAIN
    return Layout.POD if server.name == SERVER_NAME else Layout.PLAIN


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1", "replace")
