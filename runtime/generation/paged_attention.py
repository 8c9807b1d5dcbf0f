"""Attention over transformers' paged cache that reads keys and values where they lie.

Transformers' own (SDPA) gathers them from their pages for each layer of each step, repeats them for
the heads of the queries, and needs a mask of all tokens by all cached ones. FlexAttention computes
the mask in its kernel, reads the pages that the mask names, and knows groups of heads. Layers with
a sliding window gather theirs in steps with prompts, which overwrite what they still read.

Off by default: no GPU has run it. There torch compiles it; a CPU runs it as it is, and computes the
scores of the whole cache.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface

from runtime.generation.gathered_mask import gathered_mask
from runtime.generation.limits import PAGE_TOKENS, STEP_TOKENS, key_heads
from runtime.generation.page_tables import (
    PageTable,
    StepTokens,
    begun_blocks,
    page_mask,
    page_table,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from transformers import PreTrainedModel

NAME: Final = "pilotlight_paged"


@dataclass(frozen=True, slots=True)
class _Step:
    tables: Mapping[str, PageTable | None]
    """By the kind of layer; None: its keys are gathered."""
    masks: dict[str, BlockMask] = field(default_factory=dict)


_steps: WeakKeyDictionary[Any, _Step] = WeakKeyDictionary()
"""The step that runs, by its cache."""


@contextmanager
def paged_network(network: PreTrainedModel) -> Iterator[None]:
    """In the block, the network's attention is this one; only steps of a paged cache may run."""
    before = network.config._attn_implementation
    network.config._attn_implementation = NAME
    try:
        yield
    finally:
        network.config._attn_implementation = before


@contextmanager
def paged_step(
    network: PreTrainedModel, cache: Any, tables: Mapping[str, PageTable | None]
) -> Iterator[None]:
    """In the block, the network runs a step whose requests have these tables."""
    _steps[cache] = _Step(tables)
    try:
        with paged_network(network):
            yield
    finally:
        del _steps[cache]


def step_tables(
    cache: Any, requests: Any, device: torch.device, *, padded: int = 0, columns: int = 0
) -> dict[str, PageTable | None]:
    """The tables of a step with these requests of transformers' scheduler, by kind of layer.

    `padded`: requests with padding; `columns`: blocks of a request at least. Clears the blocks that
    the step begins, of which a kernel reads the unused rest: no weight of attention makes the NaN
    of an earlier request 0.
    """
    tables = {}
    for kind, allocator in cache.cache_allocators.items():
        tokens = [
            StepTokens(
                allocator.block_table[each.state.request_id],
                each.query_length,
                each.state.position_offset,
            )
            for each in requests
        ]
        if begun := begun_blocks(tokens):
            allocator._copy_view.index_fill_(0, torch.tensor(begun, device=device), 0)
        tables[kind] = page_table(
            tokens,
            page_stride=allocator.block_physical_stride // PAGE_TOKENS,
            page_count=_page_count(allocator),
            device=device,
            window=_window(allocator),
            requests=padded,
            columns=columns,
        )
    return tables


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Of the tokens of a step, one request after the other: [1, heads, tokens, size]."""
    del attention_mask  # there is none
    for name in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"{name} with FlexAttention")
    cache, layer = kwargs["cache"], module.layer_idx
    allocator, step = cache.layer_to_allocator[layer], _steps[cache]
    kind = allocator.layer_type
    table = step.tables[kind]
    is_first = layer == allocator.layer_indices[0]
    if table is None:
        starts_q, starts_k = kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"][kind]
        key, value = cache.update(key, value, layer, dict(kwargs))
        if is_first:
            step.masks[kind] = gathered_mask(
                starts_q, starts_k, query.shape[2], key.shape[2], _window(allocator)
            )
        result = _run(query, key, value, step.masks[kind], scaling)
        return result.transpose(1, 2).contiguous(), None
    if is_first:
        step.masks[kind] = page_mask(table)
    written = kwargs["write_index"][allocator.index]
    for tokens, new in zip(allocator._kv_token_views[layer], (key, value), strict=True):
        tokens.index_copy_(0, written, new[0].transpose(0, 1))
    # [pages, page, heads, size] to [1, heads, tokens, size], of which nothing is copied.
    key, value = (
        pages[: table.page_count].flatten(0, 1).transpose(0, 1)[None]
        for pages in allocator._kv_page_views[layer]
    )
    if table.is_decode:  # a batch of requests with a query each
        query = query.transpose(0, 2)
    result = _run(query, key, value, step.masks[kind], scaling)
    if table.is_decode:
        result = result.transpose(0, 2)
    return result.transpose(1, 2).contiguous(), None


def prepare(network: PreTrainedModel, kernel: Callable[..., torch.Tensor] | None = None) -> None:
    """Have the kernels compiled that the network's steps will need: with prompts, and without.

    Called before the first step, which must not take longer than an inference may. Blocks for as
    long as torch compiles.
    """
    text = network.config.get_text_config()
    heads, groups = text.num_attention_heads, key_heads(text)
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    device, dtype = network.device, network.dtype
    with torch.inference_mode():
        cached = torch.zeros(4 * PAGE_TOKENS, groups, size, dtype=dtype, device=device)
        keys = cached.transpose(0, 1)[None]
        for new in (1, STEP_TOKENS // 2):
            tokens = [StepTokens((0, 1), new, new), StepTokens((2, 3), new, new)]
            table = page_table(tokens, page_stride=1, page_count=4, device=device)
            assert table is not None  # without a window
            shape = (2, heads, 1, size) if table.is_decode else (1, heads, 2 * new, size)
            query = torch.zeros(shape, dtype=dtype, device=device)
            _run(query, keys, keys, page_mask(table), size**-0.5, kernel)
        if window := getattr(text, "sliding_window", None):
            ends = torch.tensor([0, keys.shape[2]], dtype=torch.int32, device=device)
            query = torch.zeros(1, heads, keys.shape[2], size, dtype=dtype, device=device)
            mask = gathered_mask(ends, ends, keys.shape[2], keys.shape[2], window)
            _run(query, keys, keys, mask, size**-0.5, kernel)


def _run(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: BlockMask,
    scaling: float | None,
    kernel: Callable[..., torch.Tensor] | None = None,
) -> torch.Tensor:
    heads, groups = query.shape[1], key.shape[1]
    kernel = kernel or _kernel(query.device.type, heads, groups, query.shape[3], query.dtype)
    # A step of the kernel through the keys is no longer than a block of the mask.
    options = {"BLOCK_N": PAGE_TOKENS} if mask.BLOCK_SIZE[1] == PAGE_TOKENS else None
    return kernel(
        query,
        key,
        value,
        block_mask=mask,
        scale=scaling,
        enable_gqa=heads != groups,
        kernel_options=options,
    )


def _page_count(allocator: Any) -> int:
    """Pages in the views of all layers: each begins a page of keys and one of values later."""
    return min(len(keys) for keys, _ in allocator._kv_page_views.values())


def _window(allocator: Any) -> int | None:
    return getattr(allocator, "sliding_window", None)


@cache
def _kernel(device: str, *shape: object) -> Callable[..., torch.Tensor]:
    """One for each shape of heads, as torch compiles a function for few; then it raises an error.

    Without `fullgraph` it would compute the scores of the whole cache.
    """
    del shape
    if device == "cpu":
        return _eager
    compiled: Callable[..., torch.Tensor] = torch.compile(  # type: ignore[call-overload]  # newer
        flex_attention, dynamic=True, fullgraph=True, isolate_recompiles=True
    )
    return compiled


def _eager(*args: Any, **kwargs: Any) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        result: torch.Tensor = flex_attention(*args, **kwargs)
    return result


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)
