"""The engine of ONNX models (`onnxruntime`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runtime.engines.libraries.library import LibraryEngine, import_library, one_line
from runtime.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    import torch

    from runtime.engines.engine import ModelFolder

CUDA_PROVIDER = "CUDAExecutionProvider"
CPU_PROVIDER = "CPUExecutionProvider"
ERRORS_ONLY = 3


class OnnxEngine(LibraryEngine):
    name = "onnx"
    memory_ratio = 1.5
    fixed_bytes = 512 * 1024

    def load(
        self, content: memoryview, model: ModelFolder, *, device: torch.device, threads: int
    ) -> OnnxModel:
        """From the file: a graph of bytes alone may read files of the pod's working directory.

        onnxruntime refuses tensors, also of inner graphs, in files outside the model's folder.
        """
        onnxruntime = import_library("onnxruntime", "onnx")
        providers = [CPU_PROVIDER]
        if device.type == "cuda" and CUDA_PROVIDER in onnxruntime.get_available_providers():
            providers.insert(0, CUDA_PROVIDER)
        return OnnxModel(
            onnxruntime.InferenceSession(
                str(self.path), _options(onnxruntime, threads), providers=providers
            )
        )


def _options(onnxruntime: Any, threads: int) -> Any:
    """No spinning threads, and no arena: memory of an inference goes back at its end."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.log_severity_level = ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


class OnnxModel:
    """A session; its inputs and outputs by name."""

    def __init__(self, session: Any) -> None:
        self.are_rows_independent = False
        """Whether a check found that rows do not affect each other, so requests can be batched."""
        self._session = session

    def __call__(
        self, inputs: Mapping[str, npt.NDArray[Any]], outputs: Sequence[str]
    ) -> list[npt.NDArray[Any]]:
        """The outputs of these names; raises InvalidRequest."""
        try:
            found: list[npt.NDArray[Any]] = self._session.run(list(outputs), dict(inputs))
        except Exception as error:  # onnxruntime's errors have no common class
            raise InvalidRequest(f"the model refused these tensors: {one_line(error)}") from None
        return found
