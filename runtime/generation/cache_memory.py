"""The memory that a model takes to generate text: its key-value cache, and a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from registry.domain.model import Task
from runtime.engines.networks.configuration import position_limit, read_config, task_in
from runtime.generation.limits import GenerationLimits
from runtime.weights.safetensors_files import DTYPES, SCALE_NAMES, StoredTensor

if TYPE_CHECKING:
    from transformers import PretrainedConfig


PAGE_TOKENS = 32
"""Tokens of one page of the key-value cache."""
STEP_TOKENS = 512
"""Tokens of one step: long prompts take several steps, so that no step is long."""
GPU_CACHE_SHARE = 0.25
"""Most of a GPU pod's memory for models that one model's cache takes; no GPU has measured it."""
LEAST_CONTEXTS = 2
"""Whole contexts that a GPU's cache holds, if need be by the eviction of other models."""
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


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of the device that a model's weights leave, in bytes."""

    whole_bytes: int
    """Once all other models have left."""
    free_bytes: int
    """Now."""


@dataclass(frozen=True, slots=True)
class GenerationMemory:
    """What a model takes to generate text, beside its weights."""

    limits: GenerationLimits
    """With the size of its cache."""
    total_bytes: int
    """0 for a model that generates none."""


@dataclass(frozen=True, slots=True)
class StepMemory:
    """What a step needs beside the cache, in bytes: held as long as the model, or during a step."""

    mask_bytes: int
    """Held: transformers makes a mask of the largest step once."""
    layer_bytes: int
    """The keys and values of one layer, gathered from their pages, and once for each head of the
    queries where those share them: attention with a mask knows no groups of heads."""
    activation_bytes: int
    """Of the widest part of a layer: what goes into the MLP, its two inner vectors, its result."""
    score_bytes: int
    """Of all tokens of a step, in 32 bits."""

    @property
    def total_bytes(self) -> int:
        return self.mask_bytes + self.layer_bytes + self.activation_bytes + self.score_bytes


def step_memory(config: PretrainedConfig, shape: CacheShape, value_bytes: int) -> StepMemory:
    """Of the largest step: `STEP_TOKENS` tokens that attend to the whole cache."""
    text = config.get_text_config()
    tokens = shape.pages * PAGE_TOKENS + STEP_TOKENS
    gathered = shape.bytes_per_page // text.num_hidden_layers // PAGE_TOKENS * tokens
    groups = _heads(text) // _key_heads(text)
    inner = _largest(getattr(text, "intermediate_size", None)) or 4 * text.hidden_size
    return StepMemory(
        STEP_TOKENS * tokens * value_bytes,
        gathered * (1 + groups if groups > 1 else 1),
        STEP_TOKENS * (2 * text.hidden_size + 2 * inner) * value_bytes,
        STEP_TOKENS * text.vocab_size * 4,
    )


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


def limits_in(
    config: PretrainedConfig, limits: GenerationLimits, value_bytes: int, room: Room
) -> GenerationLimits:
    """With a cache that fits, and its step with it, into what is free now.

    At least `LEAST_CONTEXTS` whole contexts, as far as they fit once all other models have left.
    """
    shape = cache_shape(config, limits, value_bytes)
    context = -(-shape.context_tokens // PAGE_TOKENS)
    none, one = (
        each.total_bytes + step_memory(config, each, value_bytes).total_bytes
        for each in (replace(shape, pages=0), replace(shape, pages=1))
    )

    def pages_in(room_bytes: int) -> int:
        return max(0, (room_bytes - none) // (one - none))

    wanted = max(LEAST_CONTEXTS * context, pages_in(room.free_bytes))
    pages = max(1, min(shape.pages, wanted, pages_in(room.whole_bytes)))
    return replace(limits, cache_bytes=pages * shape.bytes_per_page)


def generation_memory(
    folder: Path,
    declared: Task | None,
    limits: GenerationLimits,
    tensors: Sequence[StoredTensor],
    room: Room,
) -> GenerationMemory:
    """Memory to generate text: of the cache, and as set of a step."""
    nothing = GenerationMemory(limits, 0)
    if not (folder / "config.json").exists():
        return nothing  # not a model of transformers
    config = read_config(folder)
    if task_in(folder, config, declared) is not Task.TEXT_GENERATION:
        return nothing
    value_bytes = _value_bytes(tensors)
    if not limits.counts_steps:
        return GenerationMemory(limits, cache_shape(config, limits, value_bytes).total_bytes)
    limits = limits_in(config, limits, value_bytes, room)
    shape = cache_shape(config, limits, value_bytes)
    step = step_memory(config, shape, value_bytes)
    return GenerationMemory(limits, shape.total_bytes + step.total_bytes)


def _value_bytes(tensors: Sequence[StoredTensor]) -> int:
    """Of a key or value: they have the type of the weights, but for scales and whole numbers."""
    sizes = [
        DTYPES[each.dtype].itemsize
        for each in tensors
        if DTYPES[each.dtype].is_floating_point and each.name.rpartition(".")[2] not in SCALE_NAMES
    ]
    return max(sizes, default=4)
