"""One request over gRPC in the Open Inference Protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import grpc
from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages

from load.generator.bodies import Bodies
from load.generator.paths import inference_path
from load.generator.settings import SERVER_NAME, Layout

if TYPE_CHECKING:
    from collections.abc import Callable

    from load.generator.answers import RequestResult
    from load.generator.arrivals import TraceArrival
    from load.generator.content import Content
    from load.generator.settings import RunSettings
    from load.generator.target_url import TargetUrl

_METHOD: Final = "/inference.GRPCInferenceService/ModelInfer"
_SERVER_METADATA: Final = "/inference.GRPCInferenceService/ServerMetadata"
_PATIENCE_S: Final = 10.0
_STATUS: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNKNOWN: 500,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
"""The HTTP status that says the same; UNAVAILABLE may mean that nobody was there: 0."""
_LONGEST_ERROR: Final = 300


class GrpcSender:
    """Puts requests to a pod or KServe predictor; the gateway speaks HTTP only."""

    def __init__(
        self, settings: RunSettings, origin: TargetUrl, now_s: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._now_s = now_s
        self._bodies = Bodies(settings.protocol, settings.seed)
        self._channel = _channel(origin)
        self._infer = self._channel.unary_unary(
            _METHOD,
            request_serializer=messages.ModelInferRequest.SerializeToString,
            response_deserializer=messages.ModelInferResponse.FromString,
        )

    async def send(
        self, arrival: TraceArrival, content: Content, request_id: str, outcome: RequestResult
    ) -> None:
        """Fill in the outcome of one request; whatever goes wrong becomes its error."""
        request = self._request(arrival, content, request_id)
        outcome.sent_s = self._now_s()
        call = self._infer(request, metadata=self._metadata(request_id), timeout=arrival.deadline_s)
        try:
            await call
            outcome.status = 200
        except grpc.aio.AioRpcError as error:
            outcome.status = _STATUS.get(error.code(), 0)
            outcome.error = f"gRPC {error.code().name}: {error.details()}"[:_LONGEST_ERROR]
        finally:
            outcome.finished_s = self._now_s()
        outcome.first_byte_s = outcome.finished_s if outcome.status else None
        pairs = [*(await call.initial_metadata() or ()), *(await call.trailing_metadata() or ())]
        outcome.read_headers((_bytes(name), _bytes(value)) for name, value in pairs)

    def _request(self, arrival: TraceArrival, content: Content, request_id: str) -> Any:
        settings = self._settings
        tensors = self._bodies.tensors(arrival, content)
        name = inference_path(
            settings.protocol, settings.layout, tenant=arrival.tenant, model=arrival.model,
            is_generation=False,
        )  # fmt: skip
        return messages.ModelInferRequest(
            model_name=name,
            id=request_id,
            inputs=[
                messages.ModelInferRequest.InferInputTensor(
                    name=each.name, datatype=each.datatype, shape=each.shape
                )
                for each in tensors
            ],
            raw_input_contents=[each.data for each in tensors],
        )

    def _metadata(self, request_id: str) -> tuple[tuple[str, str], ...]:
        policy = self._settings.policy
        chosen = () if policy is None else (("x-pilotlight-policy", policy),)
        return (("x-request-id", request_id), *chosen)

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()


def _channel(origin: TargetUrl) -> grpc.aio.Channel:
    target = f"{origin.host}:{origin.port}"
    options = [("grpc.max_receive_message_length", -1)]
    if origin.is_encrypted:
        return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(), options)
    return grpc.aio.insecure_channel(target, options)


async def layout_of(origin: TargetUrl) -> Layout:
    """What a target says it is; plain where it does not say, or nobody answers."""
    async with _channel(origin) as channel:
        ask = channel.unary_unary(
            _SERVER_METADATA,
            request_serializer=messages.ServerMetadataRequest.SerializeToString,
            response_deserializer=messages.ServerMetadataResponse.FromString,
        )
        try:
            server = await ask(messages.ServerMetadataRequest(), timeout=_PATIENCE_S)
        except grpc.aio.AioRpcError:
            return Layout.PLAIN
    return Layout.POD if server.name == SERVER_NAME else Layout.PLAIN


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1", "replace")
