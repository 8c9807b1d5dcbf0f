"""vLLM: `vllm serve`, from an environment of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

from registry.domain.model import EngineChoice, ModelSpec, Precision, Task
from runtime.engines.engine_adapter import (
    EngineAdapter,
    EngineStart,
    Launch,
    LauncherFacts,
    served_names,
)

_GENERATING: Final = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Ends of the names of architectures that generate text; vLLM knows none but of text."""


class VllmAdapter(EngineAdapter):
    title = "vLLM"
    choice = EngineChoice.VLLM
    launch = Launch(
        server="vllm.entrypoints.openai.api_server",
        imports=("vllm.v1.engine.core",),
        version="vllm:__version__",
        architectures="vllm:ModelRegistry.get_supported_archs",
        can_sleep="vllm.platforms:current_platform.is_sleep_mode_available",
    )
    metrics: ClassVar = {
        "vllm:num_requests_running": "running",
        "vllm:num_requests_waiting": "waiting",
        "vllm:kv_cache_usage_perc": "cache_used",
        "vllm:gpu_cache_usage_perc": "cache_used",
        "vllm:prompt_tokens_total": "tokens",
        "vllm:generation_tokens_total": "tokens",
    }
    stages: ClassVar = {
        "weights": re.compile(r"Loading weights took ([\d.]+) s"),
        "warm-up": re.compile(r"init engine \(.*\) took ([\d.]+) s"),
    }
    sequences = 256
    # Level 1: weights go to the node's memory, the key-value cache is dropped.
    sleep, wake = "/sleep?level=1", "/wake_up"
    load_adapter, unload_adapter = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    process_bytes = 3 << 29
    fills_cache = False

    def suits(self, spec: ModelSpec, folder: Path) -> bool:
        is_text = spec.task in (None, Task.TEXT_GENERATION)
        return is_text and any(each.endswith(_GENERATING) for each in _architectures(folder))

    def refusal(self, folder: Path, facts: LauncherFacts) -> str:
        architectures = _architectures(folder)
        if facts.architectures.intersection(architectures):
            return ""
        return f"vLLM does not know the architecture {', '.join(architectures) or '(none)'}"

    def arguments(self, start: EngineStart, socket: str) -> list[str]:
        """The model's own come last, and so win."""
        spec = start.spec
        flags = [
            "--model", str(start.folder), "--served-model-name", *served_names(spec.name),
            "--uds", socket, "--kv-cache-memory-bytes", str(start.cache_bytes),
            "--uvicorn-log-level", "warning",
        ]  # fmt: skip
        if start.device_share is None:
            flags.append("--enforce-eager")  # graphs of a CPU are compiled for minutes
        else:
            flags += ["--gpu-memory-utilization", f"{start.device_share:.3f}"]
        if start.can_sleep:
            flags.append("--enable-sleep-mode")
        if start.lora:
            flags += ["--enable-lora", "--max-lora-rank", "64", "--max-loras", "4"]
        if spec.precision not in (None, Precision.AUTO):
            flags += ["--dtype", str(spec.precision)]
        if spec.options.max_tokens:
            flags += ["--max-model-len", str(spec.options.max_tokens)]
        if spec.task is Task.TEXT_EMBEDDING:
            flags += ["--runner", "pooling"]
        return [*flags, *spec.engine_args]

    def variables(self, start: EngineStart) -> Mapping[str, str]:
        """Sleep and adapters are in its development mode, which only this pod's socket reaches."""
        return {
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_SERVER_DEV_MODE": str(int(start.can_sleep)),
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": str(int(start.lora)),
            "VLLM_CACHE_ROOT": str(start.cache),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(start.threads),
        }


def _architectures(folder: Path) -> list[str]:
    """As config.json names them; none without a readable one."""
    try:
        found = json.loads((folder / "config.json").read_text()).get("architectures")
    except (OSError, ValueError, AttributeError):
        return []
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
