"""Answering requests: the three stages, here or with the inference at another pod.

An entry request takes one of the pod's slots from its preprocessing to the end of its
postprocessing. A request for the inference stage alone comes from another pod and takes none.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from kserve.metrics import POST_HIST_TIME, PRE_HIST_TIME, PREDICT_HIST_TIME

from registry.domain.pod import Stage
from runtime.device.device_errors import is_out_of_memory
from runtime.errors import (
    DeadlinePassed,
    InferenceFailed,
    InvalidRequest,
    NoRoomToInfer,
    PodDraining,
    RemotePodUnreachable,
    RuntimePackageError,
    SlotsFull,
)
from runtime.metrics import SLOTS_USED, STAGE_SECONDS
from runtime.serving.in_flight import InFlightRequests
from runtime.serving.stages import postprocessed, preprocessed, simulate
from runtime.threads import SMALL_BODY_BYTES, in_thread
from runtime.wire.bodies import ReadBody, WireProtocol, read_body, v2_of, write_answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from registry.domain.model import ModelSpec
    from runtime.loading.load_coordinator import AcquiredModel, LoadCoordinator
    from runtime.loading.processors import Processors
    from runtime.registration.inference_end_notifier import InferenceEndNotifier
    from runtime.registration.measurements import Measurements
    from runtime.registration.model_catalog import ModelCatalog
    from runtime.serving.remote_inference import RemoteInference
    from runtime.tasks.task import Processor
    from runtime.wire.request_head import RequestHead
    from runtime.wire.tensors import Tensor
    from runtime.wire.v2 import EncodedBody

KSERVE_HISTOGRAMS = {
    Stage.PREPROCESS: PRE_HIST_TIME,
    Stage.INFER: PREDICT_HIST_TIME,
    Stage.POSTPROCESS: POST_HIST_TIME,
}
BAD_TENSOR_ERRORS = (ValueError, TypeError, IndexError, KeyError, AttributeError, RuntimeError)
"""What torch raises for tensors of the wrong shape, type or range."""


@dataclass(frozen=True, slots=True)
class PredictAnswer:
    """A request's answer and how it came about."""

    body: EncodedBody
    predict_pod: str
    start: str
    stages: Mapping[Stage, float]
    """Seconds per stage."""


@dataclass(slots=True)
class _Progress:
    """A request on its way. Mutable: owned by the task that answers it."""

    head: RequestHead
    spec: ModelSpec
    predict_pod: str
    start: str = "warm"
    stages: dict[Stage, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """Who this pod is to others."""

    name: str
    address: str
    slots: int


class PredictService:
    """All requests of a pod."""

    def __init__(
        self,
        identity: PodIdentity,
        *,
        catalog: ModelCatalog,
        coordinator: LoadCoordinator,
        processors: Processors,
        peers: RemoteInference,
        end_notifier: InferenceEndNotifier,
        measurements: Measurements,
        threads: Executor,
    ) -> None:
        self._identity = identity
        self._catalog = catalog
        self._coordinator = coordinator
        self._processors = processors
        self._peers = peers
        self._end_notifier = end_notifier
        self._measurements = measurements
        self._threads = threads
        self._slots_used = 0
        self._in_flight = 0
        self._lives = InFlightRequests(identity.name)
        self._idle = asyncio.Event()
        self._idle.set()
        self.is_draining = False

    def abandon(self) -> None:
        """Give up what is being answered: the pod must end."""
        self._lives.end_all()

    async def wait_idle(self) -> None:
        """Return once no request is being answered."""
        await self._idle.wait()

    def check_open(self, head: RequestHead) -> None:
        """Refuse early, before the body is read; raises Draining, SlotsFull, DeadlinePassed."""
        if self.is_draining:
            raise PodDraining(f"pod {self._identity.name} is draining")
        if head.deadline_s is not None and time.monotonic() >= head.deadline_s:
            raise DeadlinePassed("the deadline had passed when the request arrived")
        if not head.is_infer_stage and self._slots_used >= self._identity.slots:
            raise SlotsFull(f"all {self._identity.slots} slots of the pod are taken")

    @property
    def address(self) -> str:
        """Where other pods reach this one."""
        return self._identity.address

    @asynccontextmanager
    async def admitted(self, head: RequestHead) -> AsyncIterator[None]:
        """A request's time under way; raises as `check_open` does, and PodEnded."""
        with self._place(head):
            async with self._lives.one():
                yield

    async def answer(
        self, head: RequestHead, protocol: WireProtocol, body: bytes | ReadBody
    ) -> PredictAnswer:
        """The answer to a request, decoded or not; raises RuntimePackageError, PeerRefused."""
        async with self.admitted(head):
            if isinstance(body, bytes):
                body = await self._read(head, protocol, body)
            if head.is_infer_stage:
                return await self._answer_inference(head, body)
            return await self._answer_entry(head, body)

    async def _read(self, head: RequestHead, protocol: WireProtocol, body: bytes) -> ReadBody:
        if len(body) <= SMALL_BODY_BYTES:
            return read_body(protocol, body, head.v2_header_length)
        return await in_thread(self._threads, read_body, protocol, body, head.v2_header_length)

    @contextmanager
    def _place(self, head: RequestHead) -> Iterator[None]:
        """Count the request, and its slot if it takes one."""
        self.check_open(head)
        slots = 0 if head.is_infer_stage else 1
        self._slots_used += slots
        self._in_flight += 1
        self._idle.clear()
        SLOTS_USED.set(self._slots_used)
        try:
            yield
        finally:
            self._slots_used -= slots
            self._in_flight -= 1
            SLOTS_USED.set(self._slots_used)
            if self._in_flight == 0:
                self._idle.set()

    # Entry requests

    async def _answer_entry(self, head: RequestHead, body: ReadBody) -> PredictAnswer:
        spec = await self._catalog.find(head.name, head.generation)
        progress = _Progress(head, spec, self._identity.name)
        if head.predict_address in {None, self._identity.address}:
            processor, outputs = await self._infer_here(progress, body)
        else:
            processor, outputs = await self._infer_there(progress, body)
        content = await self._postprocess(progress, processor, body, outputs)
        return PredictAnswer(content, progress.predict_pod, progress.start, progress.stages)

    async def _infer_here(
        self, progress: _Progress, body: ReadBody
    ) -> tuple[Processor, tuple[Tensor, ...]]:
        head = progress.head
        try:
            acquired = await self._hold(progress)
            try:
                processor = acquired.model.processor
                inputs = await self._preprocess(progress, processor, body)
                return processor, await self._infer(progress, acquired, inputs)
            finally:
                await self._coordinator.release(acquired)
        finally:
            self._end_notifier.notify(head.reservation)

    async def _infer_there(
        self, progress: _Progress, body: ReadBody
    ) -> tuple[Processor, tuple[Tensor, ...]]:
        head = progress.head
        if not await self._catalog.is_pod(head.predict_address):
            raise RemotePodUnreachable(f"predict pod {head.predict_address} is not registered")
        started_s = time.monotonic()
        was_ready = self._processors.has(progress.spec.key)
        processor = await self._processors.get(progress.spec)
        assets_s = time.monotonic() - started_s
        if not was_ready:
            self._measurements.add(progress.spec.key, "assets", assets_s)
        inputs = await self._preprocess(progress, processor, body)
        await simulate(head.simulation.network_s)
        answer = await self._peers.infer(head, inputs)
        progress.predict_pod = answer.pod
        progress.start = answer.start
        progress.stages[Stage.LOAD] = assets_s + answer.load_s
        progress.stages[Stage.INFER] = answer.infer_s
        network_s = head.simulation.network_s + answer.network_s
        self._record(progress, Stage.NETWORK, network_s, sample_s=network_s)
        return processor, answer.outputs

    # The inference stage, for another pod

    async def _answer_inference(self, head: RequestHead, body: ReadBody) -> PredictAnswer:
        request = v2_of(body)
        spec = await self._catalog.find(head.name, head.generation)
        progress = _Progress(head, spec, self._identity.name)
        try:
            acquired = await self._hold(progress)
            try:
                rules = acquired.model.processor.batching
                inputs = await in_thread(self._threads, rules.checked, request.inputs)
                outputs = await self._infer(progress, acquired, inputs)
            finally:
                await self._coordinator.release(acquired)
        finally:
            self._end_notifier.notify(head.reservation)
        content = await self._written(head, body, outputs)
        return PredictAnswer(content, progress.predict_pod, progress.start, progress.stages)

    async def _written(
        self, head: RequestHead, body: ReadBody, outputs: Sequence[Tensor]
    ) -> EncodedBody:
        write = partial(write_answer, body, outputs, predictions=[], model_name=head.answer_name)
        if sum(tensor.data.nbytes for tensor in outputs) <= SMALL_BODY_BYTES:
            return write()
        return await in_thread(self._threads, write)

    # Stages

    async def _hold(self, progress: _Progress) -> AcquiredModel:
        head = progress.head
        acquired = await self._coordinator.acquire(
            progress.spec, token=head.load_token, deadline_s=head.deadline_s
        )
        progress.start = acquired.start
        if acquired.load_s:
            self._record(progress, Stage.LOAD, acquired.load_s)
        return acquired

    async def _preprocess(
        self, progress: _Progress, processor: Processor, body: ReadBody
    ) -> tuple[Tensor, ...]:
        started_s = time.monotonic()
        inputs = await in_thread(self._threads, preprocessed, processor, body)
        await simulate(progress.head.simulation.preprocess_s)
        seconds = time.monotonic() - started_s
        self._record(progress, Stage.PREPROCESS, seconds, sample_s=seconds)
        return inputs

    async def _infer(
        self, progress: _Progress, acquired: AcquiredModel, inputs: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        head = progress.head
        try:
            ran = await acquired.model.infer(
                inputs, deadline_s=head.deadline_s, policy=progress.spec.policy
            )
        except RuntimePackageError:
            raise
        except (*BAD_TENSOR_ERRORS, MemoryError) as error:
            if is_out_of_memory(error):
                raise NoRoomToInfer(
                    f"the device has no room for this inference of {acquired.entry.key}: {error}"
                ) from error
            if head.is_infer_stage:  # these tensors came from outside
                raise InvalidRequest(f"the model refused these tensors: {error}") from error
            raise InferenceFailed(f"inference of {acquired.entry.key} failed: {error}") from error
        self._record(progress, Stage.INFER, ran.wait_s + ran.compute_s, sample_s=ran.compute_s)
        rows = acquired.model.processor.batching.rows_of(inputs)
        share_s = ran.compute_s * rows / ran.rows
        self._measurements.add(progress.spec.key, "share", share_s)
        return ran.value

    async def _postprocess(
        self,
        progress: _Progress,
        processor: Processor,
        body: ReadBody,
        outputs: Sequence[Tensor],
    ) -> EncodedBody:
        started_s = time.monotonic()
        content = await in_thread(
            self._threads, postprocessed, processor, body, outputs, progress.head.answer_name
        )
        await simulate(progress.head.simulation.postprocess_s)
        seconds = time.monotonic() - started_s
        self._record(progress, Stage.POSTPROCESS, seconds, sample_s=seconds)
        return content

    def _record(
        self, progress: _Progress, stage: Stage, seconds: float, *, sample_s: float | None = None
    ) -> None:
        """Note a stage's time; `sample_s` is what the registry's estimates are made of."""
        progress.stages[stage] = seconds
        STAGE_SECONDS.labels(stage=stage.value).observe(seconds)
        histogram = KSERVE_HISTOGRAMS.get(stage)
        if histogram is not None:
            histogram.labels(model_name=progress.spec.name.path_segment).observe(seconds)
        if sample_s is not None:
            self._measurements.add(progress.spec.key, stage.value, sample_s)
