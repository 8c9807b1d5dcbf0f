"""A model on the device: its network behind the device's queue, and its generation engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

from runtime.device.device_model import DeviceModel, Payload
from runtime.device.queue import InferenceResult
from runtime.device.stepwise import Stepwise, run_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import PreTrainedModel

    from registry.domain.model import ModelPolicy, ModelSpec
    from runtime.device.worker import DeviceWorker
    from runtime.generation.engine import GenerationEngine
    from runtime.tasks.task import Processor
    from runtime.wire.tensors import Tensor

Result = TypeVar("Result")


class ServedModel:
    """One generation of a model with its network."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        processor: Processor,
        network: Any,
        device: DeviceWorker,
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

    @property
    def is_broken(self) -> bool:
        """Whether an inference hung; the model then runs no further inference."""
        return self.device_model.broken_reason is not None

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
        others run. `due_s` is its urgency, where it differs from the deadline.

        `policy` is that of the model's current annotations, which limits its batches.
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
            payload = Payload(inputs, rows, width, key)
            return await self._device.infer(
                self.device_model, payload, deadline_s=deadline_s, due_s=due_s
            )
        results = []
        for begin in range(0, rows, part_rows):
            part = batching.rows_between(inputs, begin, min(rows, begin + part_rows))
            payload = Payload(part, batching.rows_of(part), width, key)
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

    def infer_together(self, requests: Sequence[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
        """The outputs of each request from one inference; called by the device."""
        network, batching = self._network_in_use(), self.processor.batching
        outputs = self.processor.infer(network, batching.join(requests))
        if len(requests) == 1:
            return [outputs]
        return batching.split(outputs, [batching.rows_of(inputs) for inputs in requests])

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
