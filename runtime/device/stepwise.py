"""Inference in steps: each step is a job of the device, and other models run in between."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from runtime.device.queue import InferenceResult

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from runtime.device.device_model import DeviceModel
    from runtime.device.worker import DeviceWorker
    from runtime.wire.tensors import Tensor

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
