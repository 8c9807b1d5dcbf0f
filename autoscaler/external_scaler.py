"""KEDA's external scaler: over gRPC, what a pool or a model's transformer needs, asked and pushed.

Every autoscaler answers, leading or not: the figures are the registry's.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from importlib.resources import files
from math import ceil, inf
from typing import Any, Final

from google.protobuf.message import DecodeError

from common.grpc.call import INVALID_ARGUMENT, UNAVAILABLE, Call
from common.grpc.http2 import CreateCall, GrpcConnection
from common.http_headers import Headers
from common.inference_protocol.grpc_messages import message_classes
from registry.domain.pool_demand import REQUESTS_PER_S, WANTED_PODS, Figure, ScaleTarget
from registry.errors import NoFigures, UnknownTarget
from registry.redis.reports import PoolDemandReader
from registry.redis.watch import ClusterWatch

SERVICE: Final = "externalscaler.ExternalScaler"
POLL_INTERVAL_S: Final = 1.0
"""Between two looks at what streams are told; the first queued request needs none."""
_PER_POD: Final = "requestsPerSecond"
messages: Final[Any] = message_classes(
    files(__package__).joinpath("external_scaler.binpb").read_bytes()
)
Handle = Callable[["ScalerCall", Any], Coroutine[Any, Any, None]]


class ScalerCall(Call):
    """A call with one message; a stream's `told` is what it was sent last."""

    told: bool | None = None
    target: ScaleTarget
    _is_asked = False

    def __init__(
        self,
        scaler: "ExternalScaler",
        kind: Any,
        handle: Handle,
        connection: GrpcConnection,
        number: int,
        headers: Headers,
    ) -> None:
        super().__init__(connection, number, headers)
        self._scaler = scaler
        self._kind = kind
        self._handle = handle

    def on_message(self, content: bytes) -> None:
        self._is_asked = True
        try:
            message = self._kind.FromString(content)
        except DecodeError:
            name = self._kind.DESCRIPTOR.name
            self.finish(INVALID_ARGUMENT, f"the message is not a {name}")
            return
        self._scaler.start(self._answer(message))

    async def _answer(self, message: Any) -> None:
        try:
            await self._handle(self, message)
        except UnknownTarget as error:
            self.finish(INVALID_ARGUMENT, str(error))
        except NoFigures as error:
            self.finish(UNAVAILABLE, str(error))

    def on_end(self) -> None:
        if not self._is_asked:
            self.finish(INVALID_ARGUMENT, "the call has no message")

    def on_over(self) -> None:
        self._scaler.streams.discard(self)


class ExternalScaler:
    """The service of one pool. `run` is its only task; calls have others."""

    def __init__(self, pool: str, watch: ClusterWatch, group: asyncio.TaskGroup) -> None:
        self.start = group.create_task
        self.streams: set[ScalerCall] = set()
        self._pool = pool
        self._watch = watch
        self._reader = PoolDemandReader(watch.registry)
        self._had_queue = False
        self._wake = asyncio.Event()
        watch.subscribe(self._on_change)

    def calls(self) -> dict[bytes, CreateCall]:
        reference, request = messages.ScaledObjectRef, messages.GetMetricsRequest
        handlers: dict[str, tuple[Any, Handle]] = {
            "IsActive": (reference, self._is_active),
            "StreamIsActive": (reference, self._stream_is_active),
            "GetMetricSpec": (reference, self._metric_spec),
            "GetMetrics": (request, self._metrics),
        }
        return {
            f"/{SERVICE}/{name}".encode(): partial(ScalerCall, self, *handler)
            for name, handler in handlers.items()
        }

    def _on_change(self) -> None:
        if self._watch.state.has_queue is not self._had_queue:
            self._had_queue = self._watch.state.has_queue
            self._wake.set()

    async def run(self) -> None:
        """Push changes to streams; at the end, have KEDA open them elsewhere."""
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_INTERVAL_S):
                        await self._wake.wait()
                self._wake.clear()
                with suppress(NoFigures):
                    await self._push(self.streams)
        finally:
            for stream in list(self.streams):
                stream.finish()

    async def _push(self, streams: set[ScalerCall]) -> None:
        """Raises NoFigures if there are none at all."""
        if not streams:
            return
        demand = await self._reader.read()
        for stream in list(streams):
            try:
                is_active = demand.figure(stream.target, self._watch.state.models).is_active
            except NoFigures:
                continue  # they may come
            except UnknownTarget as error:
                stream.finish(INVALID_ARGUMENT, str(error))
                continue
            if is_active is not stream.told:
                stream.told = is_active
                stream.send(_encoded("IsActiveResponse", result=is_active))

    # Calls

    async def _figure(self, reference: Any) -> Figure:
        demand, target = await self._reader.read(), target_of(reference, self._pool)
        return demand.figure(target, self._watch.state.models)

    async def _is_active(self, call: ScalerCall, reference: Any) -> None:
        _reply(call, "IsActiveResponse", result=(await self._figure(reference)).is_active)

    async def _stream_is_active(self, call: ScalerCall, reference: Any) -> None:
        call.target = target_of(reference, self._pool)
        self.streams.add(call)
        with suppress(NoFigures):
            await self._push({call})

    async def _metric_spec(self, call: ScalerCall, reference: Any) -> None:
        target = target_of(reference, self._pool)
        metric = WANTED_PODS if target.pool else (await self._figure(reference)).metric
        size = per_pod(reference.scalerMetadata) if metric == REQUESTS_PER_S else 1.0
        spec = {"metricName": metric, "targetSize": ceil(size), "targetSizeFloat": size}
        _reply(call, "GetMetricSpecResponse", metricSpecs=[spec])

    async def _metrics(self, call: ScalerCall, request: Any) -> None:
        figure = await self._figure(request.scaledObjectRef)
        if request.metricName not in ("", figure.metric):
            raise UnknownTarget(f"metricName must be {figure.metric}, was {request.metricName!r}")
        value = figure.value
        found = {"metricName": figure.metric, "metricValue": ceil(value), "metricValueFloat": value}
        _reply(call, "GetMetricsResponse", metricValues=[found])


def _encoded(kind: str, **fields: Any) -> bytes:
    content: bytes = getattr(messages, kind)(**fields).SerializeToString()
    return content


def _reply(call: ScalerCall, kind: str, **fields: Any) -> None:
    call.send(_encoded(kind, **fields))
    call.finish()


def target_of(reference: Any, pool: str) -> ScaleTarget:
    """What a ScaledObject asks this pool's autoscaler for. Raises UnknownTarget."""
    metadata, namespace = reference.scalerMetadata, reference.namespace
    named, deployment = metadata.get("pool", ""), metadata.get("deployment", "")
    if bool(named) == bool(deployment):
        given = ", ".join(sorted(metadata)) or "nothing"
        raise UnknownTarget(
            f"metadata must have pool: {pool}, or deployment: NAME with {_PER_POD}; has {given}"
        )
    if named not in ("", pool):
        raise UnknownTarget(
            f"metadata pool must be {pool!r}, the one of this autoscaler, was {named!r};"
            " another pool's has a Service of its own"
        )
    if metadata.get("namespace", namespace) != namespace:
        raise UnknownTarget(
            f"metadata namespace must be {namespace!r}, that of ScaledObject {reference.name},"
            f" was {metadata['namespace']!r}"
        )
    return ScaleTarget(namespace, named, deployment)


def per_pod(metadata: Any) -> float:
    """Requests per second that one pod of a Deployment serves. Raises UnknownTarget."""
    text = metadata.get(_PER_POD, "")
    with suppress(ValueError):
        if 0 < (number := float(text)) < inf:
            return number
    raise UnknownTarget(
        f"metadata {_PER_POD} must be a number above 0, of requests that one pod of the Deployment"
        f" serves in a second, was {text!r}"
    )
