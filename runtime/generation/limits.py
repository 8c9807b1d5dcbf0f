"""How much memory and work generation may take, and what that means for one model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from registry.domain.model import Task
from runtime.engines.networks.configuration import read_config, task_of

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PretrainedConfig

    from registry.domain.model import ModelPolicy

PAGE_TOKENS = 32
"""Tokens of one page of the key-value cache."""
BYTES_PER_VALUE = 4
"""Networks run in 32 bits; one in 16 takes half of what is set aside."""
DEFAULT_CONTEXT = 2048
"""Tokens of prompt and answer where a model's configuration names no limit."""


@dataclass(frozen=True, slots=True)
class GenerationLimits:
    """What one model's generation may take."""

    cache_bytes: int
    """Key-value cache of all requests together."""
    max_concurrent: int
    """Requests in one step."""
    max_new_tokens: int
    """Longest answer."""
    timeout_s: float
    """Time limit of a request."""

    def at_once(self, policy: ModelPolicy) -> int:
        """Requests in one step of a model, which its annotations may bound further."""
        return min(self.max_concurrent, policy.max_batch_size or self.max_concurrent)


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The key-value cache of one model."""

    pages: int
    bytes_per_page: int
    context_tokens: int
    """Most tokens of one request."""

    @property
    def total_bytes(self) -> int:
        """Memory of the whole cache."""
        return self.pages * self.bytes_per_page


def cache_shape(config: PretrainedConfig, limits: GenerationLimits) -> CacheShape:
    """As many pages as the limit allows and requests can use; one page at the least."""
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    head_size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    token_bytes = 2 * text.num_hidden_layers * heads * head_size * BYTES_PER_VALUE
    context = getattr(text, "max_position_embeddings", None) or DEFAULT_CONTEXT
    page_bytes = token_bytes * PAGE_TOKENS
    wanted = limits.max_concurrent * -(-context // PAGE_TOKENS)
    pages = max(1, min(wanted, limits.cache_bytes // page_bytes))
    return CacheShape(pages, page_bytes, min(context, pages * PAGE_TOKENS))


def cache_bytes(folder: Path, declared: Task | None, limits: GenerationLimits) -> int:
    """Memory that a model takes beside its weights; 0 where it does not generate text."""
    if not (folder / "config.json").exists():
        return 0  # no model of transformers
    config = read_config(folder)
    if task_of(config, declared) is not Task.TEXT_GENERATION:
        return 0
    return cache_shape(config, limits).total_bytes
