"""KEDA's external scaler: over gRPC, what a pool or a model's transformer needs, asked and pushed.

Every autoscaler answers, leading or not: the figures are the registry's.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from importlib.resources import files
from math import ceil
from typing import Any, Final

from google.protobuf.message import DecodeError

from common.grpc.call import INVALID_ARGUMENT, UNAVAILABLE, Call
from common.grpc.http2 import CreateCall
from common.inference_protocol.grpc_messages import message_classes
from common.pod_responses import MAX_DETAIL_CHARACTERS
from registry.domain.pool_demand import Figure, ScaleTarget
from registry.errors import NoFigures, UnknownTarget
from registry.redis.reports import PoolDemandReader
from registry.redis.watch import ClusterWatch

SERVICE: Final = "externalscaler.ExternalScaler"
POLL_INTERVAL_S: Final = 1.0
"""Between two reads for streams; the first queued request does not wait for one."""
_PER_POD: Final = "requestsPerSecond"
_MIN_PER_POD, _MAX_PER_POD = 0.001, 1e9
"""HorizontalPodAutoscalers count thousandths; KEDA, in 64 bits."""
messages: Final[Any] = message_classes(
    files(__package__).joinpath("external_scaler.binpb").read_bytes()
)


class ScalerCall(Call):
    """A call of KEDA's: one message, which is answered when KEDA has sent it all."""

    target: ScaleTarget
    told: bool | None = None
    """Of a stream: what it was sent last."""
    _content = b""

    def __init__(self, scaler: "ExternalScaler", method: str, *call: Any) -> None:
        """`call`: see `Call`."""
        super().__init__(*call)
        self._scaler = scaler
        self._method = method

    def on_message(self, content: bytes) -> None:
        self._content = content

    def on_end(self) -> None:
        self._scaler.start(self._answer())

    async def _answer(self) -> None:
        try:
            await self._scaler.answer(self, self._method, self._content)
        except DecodeError:
            self.finish(INVALID_ARGUMENT, f"the message is none of {self._method}")
        except UnknownTarget as error:
            self.finish(INVALID_ARGUMENT, str(error)[:MAX_DETAIL_CHARACTERS])
        except NoFigures as error:
            self.finish(UNAVAILABLE, str(error))

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
        self._methods: dict[str, Callable[[ScalerCall, Any], Awaitable[None]]] = {
            "IsActive": self._is_active,
            "StreamIsActive": self._stream_is_active,
            "GetMetricSpec": self._metric_spec,
            "GetMetrics": self._metrics,
        }
        watch.subscribe(self._on_change)

    def calls(self) -> dict[bytes, CreateCall]:
        return {
            f"/{SERVICE}/{name}".encode(): partial(ScalerCall, self, name) for name in self._methods
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
                _send(stream, "IsActiveResponse", result=is_active)

    # Calls

    async def answer(self, call: ScalerCall, method: str, content: bytes) -> None:
        """Raises DecodeError, UnknownTarget, NoFigures."""
        kind = "GetMetricsRequest" if method == "GetMetrics" else "ScaledObjectRef"
        request = getattr(messages, kind).FromString(content)
        call.target = target_of(getattr(request, "scaledObjectRef", request), self._pool)
        await self._methods[method](call, request)

    async def _figure(self, target: ScaleTarget) -> Figure:
        return (await self._reader.read()).figure(target, self._watch.state.models)

    async def _is_active(self, call: ScalerCall, _: Any) -> None:
        _send(call, "IsActiveResponse", result=(await self._figure(call.target)).is_active)
        call.finish()

    async def _stream_is_active(self, call: ScalerCall, _: Any) -> None:
        if not call.is_over:
            self.streams.add(call)
            with suppress(NoFigures):
                await self._push({call})

    async def _metric_spec(self, call: ScalerCall, reference: Any) -> None:
        size = 1.0 if call.target.pool else per_pod(reference.scalerMetadata)
        spec = {"metricName": call.target.metric, "targetSize": ceil(size), "targetSizeFloat": size}
        _send(call, "GetMetricSpecResponse", metricSpecs=[spec])
        call.finish()

    async def _metrics(self, call: ScalerCall, request: Any) -> None:
        metric, value = call.target.metric, (await self._figure(call.target)).value
        if request.metricName not in ("", metric):
            raise UnknownTarget(f"metricName must be {metric}, was {request.metricName!r}")
        found = {"metricName": metric, "metricValue": ceil(value), "metricValueFloat": value}
        _send(call, "GetMetricsResponse", metricValues=[found])
        call.finish()


def _send(call: ScalerCall, kind: str, **fields: Any) -> None:
    call.send(getattr(messages, kind)(**fields).SerializeToString())


def target_of(reference: Any, pool: str) -> ScaleTarget:
    """What a ScaledObject asks this pool's autoscaler for. Raises UnknownTarget."""
    metadata = reference.scalerMetadata
    named, deployment = metadata.get("pool", ""), metadata.get("deployment", "")
    if bool(named) == bool(deployment) or named not in ("", pool):
        given = ", ".join(f"{key}: {metadata[key]}" for key in sorted(metadata)) or "nothing"
        raise UnknownTarget(
            f"metadata must have pool: {pool}, the one of this autoscaler, or deployment: NAME with"
            f" {_PER_POD}; has {given}"
        )
    return ScaleTarget(reference.namespace, named, deployment)


def per_pod(metadata: Any) -> float:
    """Requests per second that one pod of a Deployment serves. Raises UnknownTarget."""
    text = metadata.get(_PER_POD, "")
    with suppress(ValueError):
        if _MIN_PER_POD <= (number := float(text)) <= _MAX_PER_POD:
            return number
    raise UnknownTarget(
        f"metadata {_PER_POD} must be a number from {_MIN_PER_POD} to {_MAX_PER_POD:g}, of requests"
        f" that one pod of the Deployment serves in a second, was {text!r}"
    )
