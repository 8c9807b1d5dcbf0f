"""The mask of keys that were gathered from their pages, one request after the other."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.nn.attention.flex_attention import BlockMask

BLOCK: Final = 128
"""Queries, and keys, of one block of the mask."""


def gathered_mask(
    starts_q: torch.Tensor, starts_k: torch.Tensor, queries: int, keys: int, window: int | None
) -> BlockMask:
    """Each query of a request sees its keys up to its own, at most `window` of them.

    The queries of a request are the last of its keys. `starts`: where each request begins, and
    where the last one ends.
    """
    device = starts_q.device
    q, k = (torch.arange(count, device=device, dtype=torch.int32) for count in (queries, keys))
    owner_q, owner_k = _owners(starts_q, q), _owners(starts_k, k)
    # The place of each query among all keys.
    place_q = starts_k[owner_q + 1] - (starts_q[owner_q + 1] - q)

    def sees(_batch: Any, _head: Any, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        seen = (owner_q[one] == owner_k[other]) & (other <= place_q[one])
        return seen if window is None else seen & (other > place_q[one] - window)

    firsts = q[::BLOCK]
    lasts = torch.clamp(firsts + BLOCK, max=queries) - 1
    first = starts_k[owner_q[firsts]] // BLOCK
    count = (starts_k[owner_q[lasts] + 1] + BLOCK - 1) // BLOCK - first
    blocks = torch.arange(-(-keys // BLOCK), device=device, dtype=torch.int32)
    indices = torch.clamp(first[:, None] + blocks, max=len(blocks) - 1)
    return BlockMask.from_kv_blocks(
        count.to(torch.int32)[None, None],
        indices.to(torch.int32)[None, None],
        BLOCK_SIZE=BLOCK,
        mask_mod=sees,
        seq_lengths=(queries, keys),
    )


def _owners(starts: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """The request that each token belongs to."""
    return torch.searchsorted(starts[1:].contiguous(), numbers, right=True, out_int32=True)
