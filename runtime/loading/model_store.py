"""The models on the device, each with its network behind the device's queue.

All methods of `ModelStore` belong to the event loop and none blocks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

from common.inference_protocol.tensors import Tensor
from registry.domain.model import ModelPolicy, ModelSpec
from registry.domain.pod import CopyReport
from runtime.device.queue import DeviceModel, InferenceResult, ModelInputs, Payload
from runtime.device.worker import DeviceWorker
from runtime.errors import ModelBroken
from runtime.generation.engine import GenerationEngine
from runtime.metrics import EVICTIONS, TIER_BYTES
from runtime.tasks.task import Processor
from runtime.tiers.device_cache import CachedModel, DeviceCache
from runtime.weights.safetensors_files import DeviceWeights, StoredTensor

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)


Result = TypeVar("Result")


class ServedModel:
    """One generation of a model with its network."""

    loads_by_size = True

    def __init__(
        self, spec: ModelSpec, *, processor: Processor, network: Any, device: DeviceWorker
    ) -> None:
        self.spec = spec
        self.processor = processor
        self._network: PreTrainedModel | None = network
        self._device = device
        self.device_model = DeviceModel(
            spec.key,
            str(spec.name),
            self.infer_together,
            spec.policy,
            max_rows=processor.batching.max_rows,
        )
        self._is_stepwise = isinstance(processor, Stepwise)  # looks through all of its attributes
        self.generator: GenerationEngine | None = None
        """Generates tokens, if the model generates text."""

    async def warm_up(self) -> None:
        """One short inference; raises the network's errors."""
        network = self._network_in_use()
        await self._device.run(lambda: self.processor.warm_up(network), model=self.device_model)

    def call(self, work: Callable[[PreTrainedModel, Processor], Result]) -> Result:
        """What `work` makes of network and processor, in the device's thread."""
        return work(self._network_in_use(), self.processor)

    async def infer(
        self,
        inputs: tuple[Tensor, ...],
        *,
        deadline_s: float | None = None,
        due_s: float | None = None,
        policy: ModelPolicy | None = None,
    ) -> InferenceResult[tuple[Tensor, ...]]:
        """Run the network on checked inputs, batched with queued ones; raises as the device does.

        A request with more rows than a batch may have runs as several batches, between which
        others run.

        Args:
            inputs: the checked inputs.
            deadline_s: the latest time at which a batch may begin.
            due_s: its urgency, where it differs from the deadline.
            policy: that of the model's current annotations, which limits its batches.
        """
        self.device_model.policy = policy or self.device_model.policy
        batching = self.processor.batching
        if self._is_stepwise:
            steps = cast("Stepwise", self.processor).steps(self._network_in_use(), inputs)
            return await run_steps(
                self._device, self.device_model, steps, deadline_s=deadline_s, due_s=due_s
            )
        key = batching.batch_key(inputs, self._network_in_use())
        width, rows = batching.tokens_per_row(inputs), batching.rows_of(inputs)
        limits = self.device_model.limits(self._device.times)
        part_rows = max(1, min(limits.max_rows, limits.max_tokens // max(1, width)))
        if key is None or rows <= part_rows:
            payload = Payload(ModelInputs(inputs), rows, width, key)
            return await self._device.infer(
                self.device_model, payload, deadline_s=deadline_s, due_s=due_s
            )
        results = []
        for begin in range(0, rows, part_rows):
            part = batching.rows_between(inputs, begin, min(rows, begin + part_rows))
            payload = Payload(ModelInputs(part), batching.rows_of(part), width, key)
            results.append(
                await self._device.infer(
                    self.device_model, payload, deadline_s=deadline_s, due_s=due_s
                )
            )
        return InferenceResult(
            batching.join_outputs([result.value for result in results]),
            sum(result.wait_s for result in results),
            sum(result.compute_s for result in results),
            rows,
        )

    def infer_together(self, requests: Sequence[ModelInputs]) -> list[tuple[Tensor, ...]]:
        """The outputs of each request from one inference; called by the device."""
        network, batching = self._network_in_use(), self.processor.batching
        outputs = self.processor.infer(network, batching.join([each.tensors for each in requests]))
        if len(requests) == 1:
            return [outputs]
        return batching.split(outputs, [batching.rows_of(each.tensors) for each in requests])

    def _network_in_use(self) -> PreTrainedModel:
        if self._network is None:
            raise RuntimeError(f"{self.spec.key} was used after its removal from the device")
        return self._network

    def stop(self) -> None:
        """Drop the network, which unmaps its weights."""
        self._network = None
        if self.generator is not None:
            self.generator.close()
            self.generator = None


Steps = Generator[None, None, "tuple[Tensor, ...]"]


@runtime_checkable
class Stepwise(Protocol):
    """A processor whose inferences are long and consist of steps."""

    def steps(self, network: PreTrainedModel, inputs: Sequence[Tensor]) -> Steps:
        """The outputs; yields between steps. Runs in the device's thread."""


async def run_steps(
    device: DeviceWorker,
    model: DeviceModel,
    steps: Steps,
    *,
    deadline_s: float | None,
    due_s: float | None = None,
) -> InferenceResult[Any]:
    """The outputs of an inference in steps; raises as `DeviceWorker.infer` does.

    Cancellation of the caller, or a passed deadline, ends the inference at the next step.
    """
    wait_s = compute_s = 0.0
    outputs: tuple[Tensor, ...] | None = None

    def advance() -> tuple[Tensor, ...] | None:
        try:
            next(steps)
        except StopIteration as end:
            value: tuple[Tensor, ...] = end.value
            return value
        return None

    while outputs is None:
        result = await device.run(advance, model=model, deadline_s=deadline_s, due_s=due_s)
        outputs = result.value
        wait_s += result.wait_s
        compute_s += result.compute_s
    return InferenceResult(outputs, wait_s, compute_s, len(outputs[0].data))


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """The weights of a model on the device, for its adapters."""

    weights: DeviceWeights
    stored: Sequence[StoredTensor]
    """In the model's files."""
    tensors: Sequence[StoredTensor]
    """As the network takes them."""
    dtype: torch.dtype | None
    """Of the weights, where it is not that of the configuration."""


@dataclass(eq=False, slots=True)
class StoreEntry(CachedModel):
    model: ServedModel = field(kw_only=True)
    free: Callable[[], None] = field(kw_only=True)
    """Frees its memory."""
    shared: SharedWeights | None = field(default=None, kw_only=True)
    """Its weights, if adapters may share them."""
    base: StoreEntry | None = field(default=None, kw_only=True)
    adapters: list[StoreEntry] = field(default_factory=list, kw_only=True)

    @property
    def is_pinned(self) -> bool:
        """Whether its annotations exempt it from eviction."""
        return self.model.spec.policy.pin

    @property
    def loads_by_size(self) -> bool:
        return self.model.loads_by_size


class ModelStore(DeviceCache[StoreEntry]):
    on_added: Callable[[StoreEntry], None] = staticmethod(lambda _entry: None)

    def acquire(self, key: str, users: int = 1) -> StoreEntry | None:
        """The model, if it is there, until each user has called `end_use`; raises ModelBroken."""
        entry = self.by_key.get(key)
        if entry is not None:
            if (reason := entry.model.device_model.broken_reason) is not None:
                raise ModelBroken(reason)  # it can be loaded again only once it is off the device
            self.use(entry, users)
        return entry

    def holds(self, key: str) -> bool:
        """Whether the model is on the device, also if it cannot infer."""
        return key in self.by_key

    def bytes_of(self, key: str) -> int:
        """Memory of a model on the device; 0 if it is not there."""
        entry = self.by_key.get(key)
        return entry.memory_bytes if entry else 0

    def add(self, entry: StoreEntry) -> None:
        super().add(entry)
        if entry.base is not None:
            entry.base.adapters.append(entry)
        self.on_added(entry)
        TIER_BYTES.labels(tier="device").set(self.used_bytes)

    def copy_reports(self) -> dict[str, CopyReport]:
        """Use of the models on the device, by key."""
        now_s = self._now_s()
        return {
            key: CopyReport(
                entry.users, entry.served, max(0.0, now_s - entry.last_s) if entry.served else None
            )
            for key, entry in self.by_key.items()
        }

    async def wait_removed(self, key: str) -> None:
        def is_removed() -> bool:
            return key not in self.by_key

        done = asyncio.Event()
        self.call_when(is_removed, done.set)
        try:
            await done.wait()
        finally:
            self.stop_waiting(is_removed)

    def _remove(self, entry: StoreEntry, reason: str, evicted_for: str | None = None) -> None:
        super()._remove(entry, reason, evicted_for)
        for adapter in tuple(entry.adapters):  # idle, as it is
            self._remove(adapter, reason, evicted_for)
        if entry.base is not None:
            entry.base.adapters.remove(entry)
        entry.model.stop()
        entry.free()
        EVICTIONS.labels(tier="device", reason=reason).inc()
        TIER_BYTES.labels(tier="device").set(self.used_bytes)
        logger.info(
            "model removed from the device",
            extra={
                "key": entry.key,
                "reason": reason,
                "evicted_for": evicted_for,
                "freed_bytes": entry.memory_bytes,
                "reload_s": round(self.reload_s(entry.key, entry.memory_bytes), 3),
            },
        )
