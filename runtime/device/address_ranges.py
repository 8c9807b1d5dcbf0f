"""Fixed ranges of device addresses: weights of one layout come back to where others of it were.

A range of virtual addresses is reserved once and kept. Memory is mapped into it for a load, and
unmapped when the model leaves, for other models and pods. CUDA graphs hold addresses: those that
were captured with the weights of a range are right for the next weights there.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_IDLE: Final = 64
"""Ranges that are kept without memory. Addresses cost nothing: a GPU has 128 TiB of them."""


class VirtualMemory(Protocol):
    """A driver's virtual memory of one device. Sizes are multiples of the granularity."""

    granularity_bytes: int

    def reserve(self, size_bytes: int) -> int:
        """The first address of a new range, which has no memory."""

    def create(self, size_bytes: int) -> int:
        """A handle of memory without addresses; raises DeviceFull."""

    def map(self, address: int, size_bytes: int, handle: int) -> None:
        """Give a reserved range this memory, which nothing may read or write yet."""

    def allow(self, address: int, size_bytes: int) -> None:
        """Let the device read and write a mapped range."""

    def unmap(self, address: int, size_bytes: int) -> None:
        """Take the memory of a whole range; no work of the device may use it."""

    def release(self, handle: int) -> None:
        """Free memory, once no range has it."""

    def free(self, address: int, size_bytes: int) -> None:
        """Give up a range without memory."""


@dataclass(frozen=True, slots=True)
class AddressRange:
    """A reserved range, for the layout with this key."""

    key: str
    address: int
    size_bytes: int


class AddressRanges:
    """The ranges of a process on one device. Thread-safe; methods block."""

    def __init__(self, memory: VirtualMemory, max_idle: int = MAX_IDLE) -> None:
        self._memory = memory
        self._max_idle = max_idle
        self._lock = threading.Lock()
        self._idle: OrderedDict[int, AddressRange] = OrderedDict()
        """By address, the least recently used first."""
        self._handles: dict[int, tuple[AddressRange, int]] = {}
        """Range and memory, by the address of the range."""

    @property
    def mapped_bytes(self) -> int:
        with self._lock:
            return sum(each.size_bytes for each, _ in self._handles.values())

    def map(self, key: str, size_bytes: int) -> AddressRange:
        """Memory of this size, at addresses where a layout with this key was before if any is free.

        Raises DeviceFull; the range is kept then.
        """
        grain = self._memory.granularity_bytes
        size_bytes = max(1, -(-size_bytes // grain)) * grain
        found = self._take(key, size_bytes)
        undo: list[Callable[[], None]] = []
        try:
            handle = self._memory.create(size_bytes)
            undo.append(lambda: self._memory.release(handle))
            self._memory.map(found.address, size_bytes, handle)
            undo.append(lambda: self._memory.unmap(found.address, size_bytes))
            self._memory.allow(found.address, size_bytes)
        except BaseException:
            for step in reversed(undo):
                step()
            self._put_back(found)
            raise
        with self._lock:
            self._handles[found.address] = (found, handle)
        return found

    def unmap(self, address: int) -> None:
        """Give back the memory of a range, and keep its addresses."""
        with self._lock:
            found, handle = self._handles.pop(address)
        self._memory.unmap(found.address, found.size_bytes)
        self._memory.release(handle)
        self._put_back(found)

    def close(self) -> None:
        """Give up all ranges without memory."""
        with self._lock:
            idle, self._idle = list(self._idle.values()), OrderedDict()
        for each in idle:
            self._memory.free(each.address, each.size_bytes)

    def _take(self, key: str, size_bytes: int) -> AddressRange:
        with self._lock:
            for each in reversed(self._idle.values()):
                if (each.key, each.size_bytes) == (key, size_bytes):
                    return self._idle.pop(each.address)
        return AddressRange(key, self._memory.reserve(size_bytes), size_bytes)

    def _put_back(self, found: AddressRange) -> None:
        dropped = None
        with self._lock:
            self._idle[found.address] = found
            if len(self._idle) > self._max_idle:
                with suppress(KeyError):
                    dropped = self._idle.popitem(last=False)[1]
        if dropped is not None:
            self._memory.free(dropped.address, dropped.size_bytes)
