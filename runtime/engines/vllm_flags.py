"""How vLLM's server is started for a model: its Python, arguments, environment and names."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Final

from registry.domain.model import ModelName, ModelSpec, Precision, Task

GENERATING: Final = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Ends of the names of architectures that generate text; vLLM knows none but of text."""
_QUIET: Final = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}


def missing_python(python: str) -> str:
    """What is wrong with the setting `engine-python`; empty: nothing."""
    if not python or shutil.which(python):
        return ""
    return f"--engine-python must be a Python with vLLM, there is no program {python!r}"


def served_names(name: ModelName) -> tuple[str, ...]:
    """The model's names in bodies; the first is the one in responses."""
    long = (str(name), name.path_segment)
    return (name.name, *long) if name.namespace == "default" else long


def server_arguments(
    spec: ModelSpec,
    folder: str,
    socket: str,
    *,
    cache_bytes: int,
    device_share: float | None,
    can_sleep: bool,
    lora: bool,
) -> list[str]:
    """Arguments of `vllm serve`; the model's own come last, and so win.

    Args:
        spec: the model.
        folder: with its files.
        socket: the path at which it listens.
        cache_bytes: of key-value blocks.
        device_share: of the device's whole memory, for weights and all else; None: on a CPU.
        can_sleep: whether this vLLM has a sleep mode.
        lora: whether the model has adapters.
    """
    flags = [
        "--model", folder, "--served-model-name", *served_names(spec.name), "--uds", socket,
        "--kv-cache-memory-bytes", str(cache_bytes), "--uvicorn-log-level", "warning",
    ]  # fmt: skip
    if device_share is None:
        flags.append("--enforce-eager")  # graphs of a CPU are compiled for minutes
    else:
        flags += ["--gpu-memory-utilization", f"{device_share:.3f}"]
    if can_sleep:
        flags.append("--enable-sleep-mode")
    if lora:
        flags += ["--enable-lora", "--max-lora-rank", "64", "--max-loras", "4"]
    if spec.precision not in (None, Precision.AUTO):
        flags += ["--dtype", str(spec.precision)]
    if spec.options.max_tokens:
        flags += ["--max-model-len", str(spec.options.max_tokens)]
    if spec.task is Task.TEXT_EMBEDDING:
        flags += ["--runner", "pooling"]
    return [*flags, *spec.engine_args]


def server_variables(*, can_sleep: bool, lora: bool, cache: str, threads: int) -> Mapping[str, str]:
    """Sleeping and adapters are in its development mode, which only this pod's socket reaches."""
    return {
        **_QUIET,
        "VLLM_SERVER_DEV_MODE": str(int(can_sleep)),
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": str(int(lora)),
        "VLLM_CACHE_ROOT": cache,
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
    }
