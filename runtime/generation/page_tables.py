"""Where the keys of a step lie in the paged cache, as tensors: one table for each kind of layer.

A request's tokens lie in blocks of the cache, in the order of its block table. A block has a page
for each layer of a kind; in the view that a layer has of the cache, those of its own pages are
`page_stride` pages apart. Slots are the places of a request's tokens within its blocks: positions,
or with a sliding window positions modulo the window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn.attention.flex_attention import BlockMask

from runtime.generation.limits import PAGE_TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROW: Final = 128
"""Queries of one row of the mask."""


@dataclass(frozen=True, slots=True)
class StepTokens:
    """One request's part in a step."""

    blocks: Sequence[int]
    """Its block table."""
    new: int
    """Tokens that the step computes: its last ones."""
    total: int
    """Tokens with those of this step."""


@dataclass(frozen=True, slots=True)
class PageTable:
    """The pages that a step reads, of one kind of layer. All tensors have 32 bits."""

    is_decode: bool
    """Whether each request has one query: then queries have a batch dimension each."""
    page_stride: int
    page_count: int
    """Of the layer's view."""
    blocks: torch.Tensor
    """[requests, columns]: the block table of each; -1 where it has none."""
    owners: torch.Tensor
    """[queries]: the request of each."""
    lasts: torch.Tensor
    """[queries]: the last slot that each sees; -1 for padding."""
    pages: torch.Tensor | None = None
    """[rows, columns]: pages that each row of queries reads; None: those of its request."""
    counts: torch.Tensor | None = None
    """[rows]: how many."""


def page_table(
    tokens: Sequence[StepTokens],
    *,
    page_stride: int,
    page_count: int,
    device: torch.device,
    window: int | None = None,
    requests: int = 0,
    columns: int = 0,
) -> PageTable | None:
    """The table of a step; None if the new tokens overwrite others that the step still reads.

    That is so with a sliding window in steps with prompts. `requests` and `columns`: sizes at
    least, filled with padding, which sees nothing.
    """
    is_decode = all(each.new == 1 for each in tokens)
    if window is not None and not is_decode:
        return None
    # Sizes of 1 are sizes of their own to torch's compiler.
    columns = max(columns, 2, *(len(each.blocks) for each in tokens))
    requests = max(requests, len(tokens), 1 if is_decode else 2)
    whole = [_filled(each.blocks, columns, -1) for each in tokens]
    whole += [[-1] * columns] * (requests - len(tokens))
    ends = [each.total if window is None else min(each.total, window) for each in tokens]
    if is_decode:
        lasts = _filled([end - 1 for end in ends], requests, -1)
        owners: list[int] = list(range(requests))
        rows = None
    else:
        lasts = [slot for each in tokens for slot in range(each.total - each.new, each.total)]
        owners = [number for number, each in enumerate(tokens) for _ in range(each.new)]
        rows = _rows(tokens, owners, page_stride)
    return PageTable(
        is_decode,
        page_stride,
        page_count,
        _tensor(whole, device),
        _tensor(owners, device),
        _tensor(lasts, device),
        None if rows is None else _tensor(rows[0], device),
        None if rows is None else _tensor(rows[1], device),
    )


def begun_blocks(tokens: Sequence[StepTokens]) -> list[int]:
    """The blocks whose first slot is of a token that the step computes."""
    return [
        block
        for each in tokens
        for block in each.blocks[-(-(each.total - each.new) // PAGE_TOKENS) :]
    ]


def page_mask(table: PageTable) -> BlockMask:
    """Each query sees the slots of its own request up to its last one, and no other page is read.

    Made of operations on the table's tensors alone, so that a graph can repeat them.
    """
    device, (requests, columns) = table.blocks.device, table.blocks.shape
    own = table.blocks.clamp(min=0) * table.page_stride
    # In which order a request's pages are read; the last column takes what is no page.
    orders = torch.full((requests, table.page_count + 1), -1, dtype=torch.int32, device=device)
    targets = torch.where(table.blocks < 0, table.page_count, own).long()
    order = torch.arange(columns, dtype=torch.int32, device=device)
    orders.scatter_(1, targets, order.expand(requests, columns))
    owners, lasts = table.owners, table.lasts

    def sees(
        batch: torch.Tensor, _head: Any, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        number = batch + query  # one of the two is 0
        slot = orders[owners[number], key // PAGE_TOKENS] * PAGE_TOKENS + key % PAGE_TOKENS
        return (slot >= 0) & (slot <= lasts[number])

    whole: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)
    if table.pages is None or table.counts is None:
        # Of all pages but the last one every slot is seen: a kernel asks the mask for that alone.
        last = lasts.clamp(min=0)[:, None] // PAGE_TOKENS
        counts, pages = (lasts[:, None, None] >= 0).int(), own.gather(1, last.long())[:, None, None]
        whole, queries = (last[:, None], own[:, None, None]), 1
    else:
        counts, pages, queries = table.counts[None, None], table.pages[None, None], len(owners)
    return BlockMask.from_kv_blocks(
        counts,
        pages,
        *whole,
        BLOCK_SIZE=(ROW, PAGE_TOKENS),
        mask_mod=sees,
        seq_lengths=(queries, table.page_count * PAGE_TOKENS),
        compute_q_blocks=False,  # for gradients
    )


def _rows(
    tokens: Sequence[StepTokens], owners: Sequence[int], page_stride: int
) -> tuple[list[list[int]], list[int]]:
    """The pages that each `ROW` queries read, once even if requests share them, and how many."""
    rows = []
    for first in range(0, len(owners), ROW):
        of_row = range(owners[first], owners[min(first + ROW, len(owners)) - 1] + 1)
        blocks = dict.fromkeys(block for number in of_row for block in tokens[number].blocks)
        rows.append([block * page_stride for block in blocks])
    rows += [[]] * (2 - len(rows))
    columns = max(2, *map(len, rows))
    return [_filled(row, columns, 0) for row in rows], [len(row) for row in rows]


def _tensor(numbers: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=device)


def _filled(numbers: Iterable[int], size: int, filling: int) -> list[int]:
    found = list(numbers)
    return found + [filling] * (size - len(found))
