"""A device without a GPU: copies run late and in order, on a thread of their own, as on a stream.

It passes the same tests as CUDA (`test_staged_memory.py`) and watches for what CUDA would do
silently wrong: a buffer that is written to while its copy is under way.
"""

from __future__ import annotations

import queue
import threading
import zlib
from dataclasses import dataclass, field

import torch

from runtime.errors import DeviceFull


@dataclass
class FakeCopy:
    """A copy that a stream will make."""

    number: int
    target: torch.Tensor
    source: torch.Tensor
    checksum: int
    """Of the source when the copy was asked for."""
    done: threading.Event = field(default_factory=threading.Event)

    def synchronize(self) -> None:
        assert self.done.wait(30)


class FakeEngine:
    """Memory of a bounded size, and one copy stream."""

    device = torch.device("cpu")

    def __init__(self, memory_bytes: int = 1 << 40) -> None:
        self.memory_bytes = memory_bytes
        self.allocated_bytes = 0
        self.pinned_bytes = 0
        self.refused = 0
        """Allocations that did not fit."""
        self.done_order: list[int] = []
        self.spoiled: list[int] = []
        """Copies whose source was changed before they were made."""
        self.failure: Exception | None = None
        """What every call would raise of a device that has failed for good."""
        self.may_copy = threading.Event()
        self.may_copy.set()
        self._lock = threading.Lock()
        self._asked = 0
        self._stream: queue.SimpleQueue[FakeCopy] = queue.SimpleQueue()
        threading.Thread(target=self._run_stream, daemon=True).start()

    def allocate(self, size_bytes: int) -> torch.Tensor:
        with self._lock:
            if self.allocated_bytes + size_bytes > self.memory_bytes:
                free = self.memory_bytes - self.allocated_bytes
                self.refused += 1
                raise DeviceFull(
                    f"the device has {free} bytes free, {size_bytes} are needed",
                    missing_bytes=size_bytes - free,
                )
            self.allocated_bytes += size_bytes
        return torch.frombuffer(_Slab(self, size_bytes), dtype=torch.uint8)

    def give_back(self, size_bytes: int) -> None:
        with self._lock:
            self.allocated_bytes -= size_bytes

    def allocate_pinned(self, size_bytes: int) -> torch.Tensor:
        self.pinned_bytes += size_bytes
        return torch.zeros(size_bytes, dtype=torch.uint8)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> FakeCopy:
        with self._lock:
            copy = FakeCopy(self._asked, target, source, _checksum(source))
            self._asked += 1
            self._stream.put(copy)
        return copy

    def synchronize(self, slab: torch.Tensor) -> None:
        last = self.copy(slab.narrow(0, 0, 0), torch.empty(0, dtype=torch.uint8))
        last.synchronize()

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _run_stream(self) -> None:
        while True:
            copy = self._stream.get()
            self.may_copy.wait()
            if _checksum(copy.source) != copy.checksum:
                self.spoiled.append(copy.number)
            copy.target.copy_(copy.source)
            self.done_order.append(copy.number)
            copy.target = copy.source = torch.empty(0)  # an event on a stream holds no memory
            copy.done.set()


class _Slab(bytearray):
    """Device memory: it is given back when the last view of it is gone."""

    def __init__(self, engine: FakeEngine, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self._engine = engine

    def __del__(self) -> None:
        self._engine.give_back(len(self))


def _checksum(memory: torch.Tensor) -> int:
    return zlib.crc32(memory.numpy().tobytes())
