"""The task of exported programs: tensors in, tensors out, on a device of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.device.device_errors import is_device_error, is_out_of_memory
from runtime.device.device_tensor import DATATYPE_OF, DeviceTensor, values_on
from runtime.engines.programs.program import Program, program_signature
from runtime.errors import InferenceFailed, InvalidRequest, ModelInvalid
from runtime.tasks.tensor_task import TensorTask

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

    from registry.domain.model import Task
    from runtime.wire.tensors import Tensor

REFUSAL_ERRORS = (
    RuntimeError, ValueError, TypeError, IndexError, ArithmeticError, AssertionError,
)  # fmt: skip
"""What torch raises for tensors whose sizes or values a program does not accept."""
MAX_OUTPUT_BYTES = 2 * 1024**3


class TensorProgram(TensorTask[Program]):
    """The task of an exported program: its inputs and outputs are the request's tensors."""

    platform = "torch.export"

    def __init__(self, path: Path, declared: Task | None) -> None:
        """Read the signature of the archive at `path`; raises ModelInvalid."""
        if declared is not None:
            raise ModelInvalid(
                "the model is an exported program, which has no task, but task"
                f" {declared.value!r} is declared: remove the annotation pilotlight.io/task"
            )
        super().__init__(program_signature(path))
        self.batching.takes_device_tensors = True

    def infer(self, network: Program, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run the program; raises InvalidRequest for tensors that it does not accept."""
        ports = zip(self._signature.inputs, inputs, strict=True)
        arguments = {port.graph_name: _argument(tensor, network) for port, tensor in ports}
        try:
            values = network(arguments)
        except REFUSAL_ERRORS as error:
            if is_out_of_memory(error) or is_device_error(error):
                raise  # not caused by the tensors
            raise InvalidRequest(f"the program refused these tensors: {error}") from error
        outputs = zip(self._signature.outputs, values, strict=True)
        return tuple(_output(port.name, value) for port, value in outputs)


def _argument(tensor: Tensor, network: Program) -> torch.Tensor:
    """A kept tensor is read by other steps as well, so no program may write to it."""
    values = values_on(network.device, tensor)
    is_shared = isinstance(tensor, DeviceTensor) and network.may_write
    return values.clone() if is_shared else values


def _output(name: str, value: torch.Tensor) -> DeviceTensor:
    if value.numel() * value.element_size() > MAX_OUTPUT_BYTES:
        raise InferenceFailed(
            f"output {name!r} has shape {list(value.shape)}; the limit is {MAX_OUTPUT_BYTES} bytes"
        )
    if value.dtype not in DATATYPE_OF:
        raise InferenceFailed(
            f"output {name!r} has type {value.dtype}, which the protocol does not support"
        )
    return DeviceTensor(name, DATATYPE_OF[value.dtype], value)
