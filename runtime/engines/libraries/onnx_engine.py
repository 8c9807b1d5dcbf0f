"""The engine of ONNX models (`onnxruntime`)."""

from __future__ import annotations

import re
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any

from runtime.engines.libraries.library import LibraryEngine
from runtime.engines.libraries.onnx_checks import (
    INLINED_NODES,
    folding_limit,
    load_allowance,
)
from runtime.engines.libraries.optional_library import import_library, one_line
from runtime.errors import InferenceTooLarge, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    import torch

    from runtime.engines.engine import ModelFolder

CUDA_PROVIDER = "CUDAExecutionProvider"
CPU_PROVIDER = "CPUExecutionProvider"
FATAL_ONLY = 4
"""Its errors are raised as well."""
AS_REQUESTED = 1
"""Of the arena's strategies to grow: no more than is asked for."""
_REGISTRATION = Lock()


OUT_OF_BUDGET = re.compile(r"Available memory of \d+ is smaller than requested bytes of (\d+)")
"""What onnxruntime's arena says at its limit (core/framework/bfc_arena.cc)."""
RUNNING = re.compile(r"while running (\w+) node\. Name:'([^']*)'")


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
        allowance = load_allowance(sum(tensor.size_bytes for tensor in model.tensors))
        folded_bytes = folding_limit(content, allowance)
        onnxruntime = import_library("onnxruntime", "onnx")
        with _REGISTRATION:  # of the cached call: two would make two arenas
            bound_inferences(model.pod_bytes // 2)
        options = session_options(onnxruntime, threads)
        for limit, value in (
            ("optimization.constant_folding_max_output_size_in_bytes", folded_bytes),
            ("session.function_expansion_node_limit", INLINED_NODES),
            ("session.function_expansion_byte_limit", allowance),
        ):
            options.add_session_config_entry(limit, str(value))
        providers = [CPU_PROVIDER]
        if device.type == "cuda" and CUDA_PROVIDER in onnxruntime.get_available_providers():
            providers.insert(0, CUDA_PROVIDER)
        return OnnxModel(
            onnxruntime.InferenceSession(str(self.path), options, providers=providers),
            onnxruntime.RunOptions(),
        )


@cache
def bound_inferences(limit_bytes: int) -> None:
    """One arena for the inferences of all sessions of the process, without their weights.

    What an inference took goes back to the system at its end (`OnnxModel`).
    """
    onnxruntime = import_library("onnxruntime", "onnx")
    kind = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    arena = onnxruntime.OrtArenaCfg({"max_mem": limit_bytes, "arena_extend_strategy": AS_REQUESTED})
    onnxruntime.create_and_register_allocator(kind, arena)


def session_options(onnxruntime: Any, threads: int) -> Any:
    """No spinning threads, and the arena of `bound_inferences`."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False
    options.log_severity_level = FATAL_ONLY
    for name in (
        "session.use_env_allocators",
        "session.use_device_allocator_for_initializers",
    ):
        options.add_session_config_entry(name, "1")
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


class OnnxModel:
    """A session; its inputs and outputs by name."""

    def __init__(self, session: Any, run_options: Any) -> None:
        self.are_rows_independent = False
        """Whether a check found that rows do not affect each other, so requests can be batched."""
        self._session = session
        run_options.log_severity_level = FATAL_ONLY
        run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        self._run_options = run_options

    def __call__(
        self, inputs: Mapping[str, npt.NDArray[Any]], outputs: Sequence[str]
    ) -> list[npt.NDArray[Any]]:
        """The outputs of these names; raises InvalidRequest."""
        try:
            found: list[npt.NDArray[Any]] = self._session.run(
                list(outputs), dict(inputs), self._run_options
            )
        except Exception as error:  # onnxruntime's errors have no common class
            if (found_limit := OUT_OF_BUDGET.search(str(error))) is not None:
                raise InferenceTooLarge(_too_large(str(error), found_limit[1])) from None
            raise InvalidRequest(f"the model refused these tensors: {one_line(error)}") from None
        return found


def _too_large(error: str, requested: str) -> str:
    nodes = RUNNING.findall(error)
    operator, name = nodes[-1] if nodes else ("", "")
    return (
        f"node {name!r} ({operator}) asks for {requested} bytes, more than is left of the memory"
        " that one inference may take: half of the pod's budget (--memory-bytes)"
    )
