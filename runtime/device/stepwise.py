"""Inference in steps: each is a job of the device, and other models have it in between."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from runtime.device.queue import InferenceResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from runtime.device.device_model import DeviceModel
    from runtime.device.worker import DeviceWorker
    from runtime.wire.tensors import Tensor

Steps = Generator[None, None, "tuple[Tensor, ...]"]


@runtime_checkable
class Stepwise(Protocol):
    """A task whose inferences are long and can be interrupted."""

    def steps(self, network: PreTrainedModel, inputs: Sequence[Tensor]) -> Steps:
        """The outputs; yields where others may have the device. Runs on the device."""


async def run_steps(
    device: DeviceWorker, model: DeviceModel, steps: Steps, *, deadline_s: float | None
) -> InferenceResult[Any]:
    """The outputs of an inference in steps; raises as `DeviceWorker.infer` does.

    A caller that is cancelled, and a deadline that passes, end it at the next step.
    """
    wait_s = compute_s = 0.0
    outputs: tuple[Tensor, ...] | None = None

    def advance() -> tuple[Tensor, ...] | None:
        try:
            next(steps)
        except StopIteration as end:
            made: tuple[Tensor, ...] = end.value
            return made
        return None

    while outputs is None:
        ran = await device.run(advance, model=model, deadline_s=deadline_s)
        outputs = ran.value
        wait_s += ran.wait_s
        compute_s += ran.compute_s
    return InferenceResult(outputs, wait_s, compute_s, len(outputs[0].data))
