"""Shared blocks: sealed memory, mapped elsewhere, gone with its last user."""

import gc
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from runtime.serving.tensor_store import BlockPool, SharedBlock, map_block

VALUES = np.arange(1 << 18, dtype=np.float32).reshape(512, 512)


def blocks_open() -> int:
    """Descriptors of blocks, and of their mappings, in this process."""
    gc.collect()
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += "memfd:pilotlight-tensor" in os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return count


def new_block(values: npt.NDArray[Any] = VALUES) -> SharedBlock:
    return BlockPool(1).copy(values, max_idle_bytes=0)


def test_a_block_is_read_where_it_is_mapped_without_a_copy() -> None:
    block = new_block()
    mapping = map_block(block.descriptor)
    seen = np.frombuffer(mapping, np.float32).reshape(VALUES.shape)
    assert np.array_equal(seen, VALUES)
    assert np.array_equal(block.values, VALUES)
    smaps = Path("/proc/self/smaps").read_text()
    entry = smaps[smaps.index("memfd:pilotlight-tensor") :]
    assert f"Rss:{VALUES.nbytes // 1024:>20} kB" in entry


def test_part_of_a_batch_in_another_order_is_copied_in_rows() -> None:
    assert np.array_equal(new_block(VALUES.T).values, VALUES.T)


def test_nobody_else_can_change_or_cut_a_block() -> None:
    block = new_block()
    with pytest.raises(PermissionError):
        os.pwrite(block.descriptor, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(block.descriptor, 0)
    with pytest.raises(PermissionError):
        mmap.mmap(block.descriptor, 4096, flags=mmap.MAP_SHARED, prot=mmap.PROT_WRITE)
    assert not block.values.flags.writeable


def test_a_file_that_could_be_cut_is_not_mapped() -> None:
    descriptor = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    try:
        os.write(descriptor, b"x" * 4096)
        with pytest.raises(PermissionError, match="must have the seals"):
            map_block(descriptor)
    finally:
        os.close(descriptor)


def test_values_outlive_their_block_and_end_with_their_last_user() -> None:
    before = blocks_open()
    pool = BlockPool(4)
    values = pool.copy(VALUES, max_idle_bytes=0).values
    assert blocks_open() == before + 2
    part = values[-1:].T
    del values
    pool.trim(0)
    assert blocks_open() == before + 2
    assert part[-1, 0] == VALUES[-1, -1]
    del part
    pool.trim(0)
    assert blocks_open() == before


def test_memory_is_written_again_when_nobody_uses_it() -> None:
    pool = BlockPool(2)
    first = pool.copy(VALUES, max_idle_bytes=1 << 30)
    used, descriptor = first.values[3:4].T, first.descriptor
    del first
    second = pool.copy(VALUES * 2, max_idle_bytes=1 << 30)
    assert second.descriptor != descriptor
    assert np.array_equal(used[:, 0], VALUES[3])
    del used
    third = pool.copy(VALUES * 3, max_idle_bytes=1 << 30)
    assert third.descriptor == descriptor
    assert np.array_equal(third.values, VALUES * 3)


def test_blocks_are_bounded_and_idle_ones_make_room_for_other_sizes() -> None:
    pool = BlockPool(1)
    block = pool.copy(VALUES, max_idle_bytes=1 << 30)
    with pytest.raises(OSError, match="as many blocks are in use as there may be"):
        pool.copy(VALUES, max_idle_bytes=1 << 30)
    del block
    assert pool.copy(VALUES[:256], max_idle_bytes=1 << 30).values.shape == (256, 512)
