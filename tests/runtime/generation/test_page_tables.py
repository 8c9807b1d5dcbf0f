"""Which pages a step reads, and what each query sees of them."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.generation.limits import PAGE_TOKENS
from runtime.generation.page_tables import (
    ROW,
    PageTable,
    StepTokens,
    begun_blocks,
    page_mask,
    page_table,
)

CPU = torch.device("cpu")
STRIDE = 4
"""Pages of a block: keys and values of two layers."""
BLOCKS = 40
FEW = settings(max_examples=40, deadline=None)


def tables(
    tokens: list[StepTokens], window: int | None = None, requests: int = 0
) -> PageTable | None:
    return page_table(
        tokens,
        page_stride=STRIDE,
        page_count=STRIDE * BLOCKS,
        device=CPU,
        window=window,
        requests=requests,
    )


def dense(table: PageTable) -> torch.Tensor:
    """[queries, keys of the view]: what each query sees."""
    mask = page_mask(table)
    zero, queries = torch.tensor(0), torch.arange(len(table.owners))
    keys = torch.arange(table.page_count * PAGE_TOKENS)[None, :]
    if table.is_decode:
        return mask.mask_mod(queries[:, None], zero, zero, keys)
    return mask.mask_mod(zero, zero, queries[:, None], keys)


def visited(table: PageTable) -> list[list[int]]:
    """The pages that each row of the mask reads."""
    mask = page_mask(table)
    rows = zip(mask.kv_num_blocks.flatten(), mask.kv_indices.flatten(0, -2), strict=True)
    found = [pages[:count].tolist() for count, pages in rows]
    if mask.full_kv_num_blocks is None or mask.full_kv_indices is None:
        return found
    whole = zip(mask.full_kv_num_blocks.flatten(), mask.full_kv_indices.flatten(0, -2), strict=True)
    return [
        [*pages[:count].tolist(), *last] for (count, pages), last in zip(whole, found, strict=True)
    ]


@st.composite
def steps(draw: st.DrawFn) -> list[StepTokens]:
    """Requests whose blocks lie in any order, and that share those of a common beginning."""
    free = list(draw(st.permutations(range(2, BLOCKS))))
    shared = [free.pop() for _ in range(draw(st.integers(0, 2)))]
    is_decode = draw(st.booleans())
    found = []
    for _ in range(draw(st.integers(1, 4))):
        first = len(shared) * PAGE_TOKENS
        old = draw(st.integers(first, first + 90))
        new = 1 if is_decode else draw(st.integers(1, 150))
        count = -(-(old + new) // PAGE_TOKENS) - len(shared)
        found.append(StepTokens([*shared, *(free.pop() for _ in range(count))], new, old + new))
    return found


@FEW
@given(steps())
def test_a_query_sees_the_slots_of_its_request_up_to_its_own(tokens: list[StepTokens]) -> None:
    table = tables(tokens)
    assert table is not None
    seen = dense(table)
    expected = torch.zeros_like(seen)
    query = 0
    for each in tokens:
        slots = torch.tensor(
            [
                each.blocks[slot // PAGE_TOKENS] * STRIDE * PAGE_TOKENS + slot % PAGE_TOKENS
                for slot in range(each.total)
            ]
        )
        for position in range(each.total - each.new, each.total):
            expected[query, slots[: position + 1]] = True
            query += 1
    assert torch.equal(seen, expected)


@FEW
@given(steps())
def test_every_page_that_is_seen_is_read_once(tokens: list[StepTokens]) -> None:
    table = tables(tokens)
    assert table is not None
    rows = visited(table)
    assert all(len(set(row)) == len(row) for row in rows)
    seen = dense(table).view(len(table.owners), -1, PAGE_TOKENS).any(2)
    for query, pages in enumerate(seen):
        row = rows[query if table.is_decode else query // ROW]
        assert set(pages.nonzero().flatten().tolist()) <= set(row)
        if table.is_decode:
            assert len(row) == int(pages.sum())


@FEW
@given(steps())
def test_of_pages_that_are_read_without_a_mask_every_slot_is_seen(tokens: list[StepTokens]) -> None:
    table = tables([replace(each, new=1) for each in tokens])
    assert table is not None
    mask = page_mask(table)
    assert mask.full_kv_num_blocks is not None
    assert mask.full_kv_indices is not None
    seen = dense(table).view(len(tokens), -1, PAGE_TOKENS).all(2)
    for query, count in enumerate(mask.full_kv_num_blocks.flatten().tolist()):
        pages = mask.full_kv_indices[query].flatten()[:count]
        assert bool(seen[query, pages.long()].all())


def test_padding_sees_and_reads_nothing() -> None:
    table = tables([StepTokens([5, 3], 1, 40)], requests=4)
    assert table is not None
    assert dense(table).any(1).tolist() == [True, False, False, False]
    assert visited(table) == [[5 * STRIDE, 3 * STRIDE], [], [], []]


def test_a_window_sees_the_slots_of_its_ring() -> None:
    """Of 40 slots: the new token has taken the place of the one that left the window."""
    table = tables([StepTokens([5, 3], 1, 20), StepTokens([9, 4], 1, 1000)], window=40)
    assert table is not None
    assert dense(table).sum(1).tolist() == [20, 40]
    assert visited(table) == [[5 * STRIDE], [9 * STRIDE, 4 * STRIDE]]


def test_a_window_with_prompts_is_gathered() -> None:
    assert tables([StepTokens([5, 3], 7, 40), StepTokens([4], 1, 3)], window=40) is None


def test_blocks_that_a_step_begins() -> None:
    tokens = [
        StepTokens([7, 8], 1, 33),  # the first token of its second block
        StepTokens([1, 2], 1, 34),
        StepTokens([3, 4, 5, 6], 70, 110),  # in the midst of its second block
        StepTokens([9], 5, 5),
    ]
    assert begun_blocks(tokens) == [8, 5, 6, 9]
