"""Limits of text generation, and the size of a model's key-value cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from registry.domain.model import ModelPolicy, Task
from runtime.device.batch import batch_cap
from runtime.engines.networks.configuration import read_config, task_of
from runtime.weights.safetensors_files import DTYPES, SCALE_NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import PretrainedConfig

    from runtime.weights.safetensors_files import StoredTensor


PAGE_TOKENS = 32
"""Tokens of one page of the key-value cache."""
STEP_TOKENS = 512
"""Tokens of one step: long prompts take several steps, so that no step is long."""
DEFAULT_CACHE_BYTES = 256 * 1024**2
"""Of a CPU pod."""
GPU_CACHE_SHARE = 0.25
"""Most of a GPU pod's memory for models that one model's cache takes; no GPU has measured it."""
DEFAULT_CONTEXT = 2048
"""Context in tokens of a model whose configuration sets no limit."""


@dataclass(frozen=True, slots=True)
class GenerationLimits:
    cache_bytes: int
    """Key-value cache of all requests together."""
    max_concurrent: int
    """Requests in one step."""
    max_new_tokens: int
    timeout_s: float
    """Time limit of a request."""
    counts_steps: bool = False
    """Whether a model's memory includes that of a step; set for a GPU, which has no swap."""

    def batch_size(self, policy: ModelPolicy, planned: int | None = None) -> int:
        """Requests in one step of a model, which its annotations or a plan may limit further."""
        limit = self.max_concurrent
        cap = batch_cap(annotated=policy.max_batch_size, planned=planned, measured=limit)
        return min(limit, cap)


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The key-value cache of one model."""

    pages: int
    bytes_per_page: int
    context_tokens: int
    """Limit of one request's prompt and new tokens."""

    @property
    def total_bytes(self) -> int:
        return self.pages * self.bytes_per_page


@dataclass(frozen=True, slots=True)
class StepMemory:
    """What a step needs beside the cache, in bytes: held as long as the model, or during a step."""

    mask_bytes: int
    """Held: transformers makes a mask of the largest step once."""
    layer_bytes: int
    """The keys and values of one layer, gathered from their pages."""
    score_bytes: int
    """Of all tokens of a step, in 32 bits."""

    @property
    def total_bytes(self) -> int:
        return self.mask_bytes + self.layer_bytes + self.score_bytes


def step_memory(config: PretrainedConfig, shape: CacheShape, value_bytes: int) -> StepMemory:
    """Of the largest step: `STEP_TOKENS` tokens that attend to the whole cache."""
    text = config.get_text_config()
    tokens = shape.pages * PAGE_TOKENS + STEP_TOKENS
    layer_bytes = shape.bytes_per_page // text.num_hidden_layers // PAGE_TOKENS * tokens
    return StepMemory(
        STEP_TOKENS * tokens * value_bytes, layer_bytes, STEP_TOKENS * text.vocab_size * 4
    )


def cache_shape(config: PretrainedConfig, limits: GenerationLimits, value_bytes: int) -> CacheShape:
    """As many pages as the limits allow and requests can use, at least one.

    `value_bytes`: of a key or value, which have the type of the network's weights.
    """
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    token_bytes = 2 * text.num_hidden_layers * heads * head_size * value_bytes
    context = getattr(text, "max_position_embeddings", None) or DEFAULT_CONTEXT
    page_bytes = token_bytes * PAGE_TOKENS
    usable = limits.max_concurrent * -(-context // PAGE_TOKENS)
    pages = max(1, min(usable, limits.cache_bytes // page_bytes))
    return CacheShape(pages, page_bytes, min(context, pages * PAGE_TOKENS))


def cache_bytes(
    folder: Path,
    declared: Task | None,
    limits: GenerationLimits,
    tensors: Sequence[StoredTensor],
) -> int:
    """Memory to generate text: of the cache, and as set of a step; 0 for other models."""
    if not (folder / "config.json").exists():
        return 0  # not a model of transformers
    config = read_config(folder)
    if task_of(config, declared) is not Task.TEXT_GENERATION:
        return 0
    sizes = [
        DTYPES[each.dtype].itemsize
        for each in tensors
        if DTYPES[each.dtype].is_floating_point and each.name.rpartition(".")[2] not in SCALE_NAMES
    ]
    value_bytes = max(sizes, default=4)
    shape = cache_shape(config, limits, value_bytes)
    if not limits.counts_steps:
        return shape.total_bytes
    return shape.total_bytes + step_memory(config, shape, value_bytes).total_bytes
