"""The task of ONNX models: tensors in, tensors out, with the names of the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.engines.libraries.onnx_engine import OnnxModel
from runtime.engines.libraries.onnx_file import onnx_signature
from runtime.engines.libraries.rows import output_tensor
from runtime.errors import ModelInvalid
from runtime.tasks.tensor_task import TensorTask
from runtime.wire.tensors import plain_values

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from registry.domain.model import Task
    from runtime.wire.tensors import Tensor


class OnnxTask(TensorTask[OnnxModel]):
    platform = "onnx"

    def __init__(self, path: Path, declared: Task | None) -> None:
        """Read the signature of the file at `path`; raises ModelInvalid."""
        if declared is not None:
            raise ModelInvalid(
                f"an ONNX model has no task, but task {declared.value!r} is declared: remove the"
                " annotation pilotlight.io/task"
            )
        super().__init__(onnx_signature(path), allows_nan=True)

    def infer(self, network: OnnxModel, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        arrays = {tensor.name: plain_values(tensor) for tensor in inputs}
        names = [port.name for port in self._signature.outputs]
        values = network(arrays, names)
        return tuple(output_tensor(value, name) for name, value in zip(names, values, strict=True))
