"""One large model replaced by another of its size: from the request to the first token.

The models are Llama's architecture with random weights in bf16, of about the size asked for.
"""

import gc
import json
import math
import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.gpu.copies import register
from benchmarks.gpu.serving import infer
from benchmarks.tiers.models import WEIGHTS, store
from benchmarks.tiers.ours import filled_skeleton, host_image
from runtime.device.staged_memory import StagedMemory
from runtime.engines.engine import Skeletons

LLAMA: Final[dict[str, Any]] = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128_256, "max_position_embeddings": 8192,
}  # fmt: skip
"""Llama 3 of 8B parameters, but the number of layers."""
_DRAWN: Final = (1 << 20) + 7
"""Random numbers that are drawn; no row of a matrix begins where another does."""
TINY: Final[dict[str, Any]] = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 128,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Swaps:
    """Seconds from a request for a model in tier `host` to its first token."""

    size_bytes: int
    seconds: list[float]


def make_llama(shape: dict[str, Any], size_bytes: int, name: str) -> Path:
    """The folder of a model with as many layers as the size allows; made once, and kept."""
    folder = store() / name
    if (folder / WEIGHTS).exists():
        return folder
    layers = max(1, round((size_bytes - _bytes(shape, 0)) / (_bytes(shape, 1) - _bytes(shape, 0))))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    drawn = torch.empty(_DRAWN, dtype=torch.bfloat16).uniform_(
        -0.02, 0.02, generator=torch.Generator().manual_seed(layers)
    )
    tensors = {
        key: _repeated(drawn, tensor.shape)
        for key, tensor in _network(shape, layers).state_dict().items()
    }
    save_file(tensors, folder / WEIGHTS)
    fields = {
        **shape,
        "num_hidden_layers": layers,
        "model_type": "llama",
        "dtype": "bfloat16",
        "architectures": ["LlamaForCausalLM"],
    }
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def _repeated(drawn: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The numbers over and over: to draw all of 15 GB takes a minute of a session on a GPU."""
    count = math.prod(shape)
    return drawn.repeat(-(-count // len(drawn)))[:count].view(shape).contiguous()


def _network(shape: dict[str, Any], layers: int) -> torch.nn.Module:
    with torch.device("meta"):
        network: torch.nn.Module = LlamaForCausalLM(LlamaConfig(**shape, num_hidden_layers=layers))
    return network


def _bytes(shape: dict[str, Any], layers: int) -> int:
    tensors = _network(shape, layers).state_dict().values()
    return sum(2 * math.prod(tuple(tensor.shape)) for tensor in tensors)


def measure_swaps(folder: Path, memory: StagedMemory, *, swaps: int) -> Swaps:
    """The model on the device is dropped, and the same bytes come back as another model's.

    Skeletons are kept, as in a pod that has served both before.
    """
    skeletons = Skeletons()
    with ExitStack() as stack:
        opened = stack.enter_context(host_image(folder))
        if opened is None:
            raise RuntimeError(f"tier host has no room for {folder.name}: enlarge /dev/shm")
        register(memory, opened)
        seconds = []
        size_bytes = 0
        skeleton = filled_skeleton(folder, opened(), skeletons, memory)
        infer(skeleton.network, memory.device)
        for _ in range(swaps):
            begun_s = time.perf_counter()
            skeletons.put_back(skeleton)
            del skeleton
            source = opened()
            size_bytes = source.layout.size_bytes
            skeleton = filled_skeleton(folder, source, skeletons, memory)
            infer(skeleton.network, memory.device)
            seconds.append(time.perf_counter() - begun_s)
        skeleton.detach()
    gc.collect()
    return Swaps(size_bytes, seconds)
