"""The memory that a model takes to generate text: its key-value cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from registry.domain.model import Task
from runtime.engines.networks.configuration import position_limit, read_config, task_in
from runtime.generation.limits import GenerationLimits
from runtime.weights.safetensors_files import DTYPES, StoredTensor

if TYPE_CHECKING:
    from transformers import PretrainedConfig


PAGE_TOKENS = 32
"""Tokens of one page of the key-value cache."""
STEP_TOKENS = 512
"""Tokens of one step: long prompts take several steps, so that no step is long."""
DEFAULT_CONTEXT = 2048
"""Context in tokens of a model whose configuration sets no limit."""


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


def _key_heads(text: PretrainedConfig) -> int:
    """Heads of keys and values, which heads of queries may share."""
    return _largest(getattr(text, "num_key_value_heads", None)) or _heads(text)


def _heads(text: PretrainedConfig) -> int:
    """Heads of queries; 1 for networks without attention, whose states are smaller than a cache."""
    return _largest(getattr(text, "num_attention_heads", None)) or 1


def _head_size(text: PretrainedConfig) -> int:
    """Of the layer with the largest heads; 0 if the configuration names none."""
    return _largest([getattr(layer, "head_dim", None) or 0 for layer in text.per_layer_config])


def _largest(size: int | Sequence[int] | None) -> int:
    """Of a size that may differ by layer; 0 without one."""
    return int(size or 0) if isinstance(size, int | None) else max(size, default=0)


def cache_shape(config: PretrainedConfig, limits: GenerationLimits, value_bytes: int) -> CacheShape:
    """As many pages as the limits allow and requests can use, at least one.

    `value_bytes`: of a key or value, which have the type of the network's weights.
    """
    text = config.get_text_config()
    heads = _key_heads(text)
    head_size = _head_size(text) or text.hidden_size // _heads(text)
    token_bytes = 2 * text.num_hidden_layers * heads * head_size * value_bytes
    context = position_limit(config) or DEFAULT_CONTEXT
    page_bytes = token_bytes * PAGE_TOKENS
    usable = limits.max_concurrent * -(-context // PAGE_TOKENS)
    pages = max(1, min(usable, limits.cache_bytes // page_bytes))
    return CacheShape(pages, page_bytes, min(context, pages * PAGE_TOKENS))


def generation_bytes(
    folder: Path, declared: Task | None, limits: GenerationLimits, tensors: Sequence[StoredTensor]
) -> int:
    """Of the cache of a model with these weights; 0 for one that generates no text."""
    if not (folder / "config.json").exists():
        return 0  # not a model of transformers
    config = read_config(folder)
    if task_in(folder, config, declared) is not Task.TEXT_GENERATION:
        return 0
    return cache_shape(config, limits, _value_bytes(tensors)).total_bytes


def _value_bytes(tensors: Sequence[StoredTensor]) -> int:
    """Of a key or value: they have the type of the weights, but for whole numbers."""
    sizes = [
        DTYPES[each.dtype].itemsize for each in tensors if DTYPES[each.dtype].is_floating_point
    ]
    return max(sizes, default=4)
