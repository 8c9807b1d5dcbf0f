"""A device without a GPU: copies run late and in order, on a thread of their own, as on a stream.

It passes the same tests as CUDA (`test_staged_memory.py`) and watches for what CUDA would do
silently wrong: a buffer that is written to while its copy is under way.
"""

import queue
import threading
import zlib
from collections.abc import Callable
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
        assert self.done.wait(60)


@dataclass
class FakeDriver:
    """The memory of one device, which several processes share."""

    memory_bytes: int
    taken_bytes: int = 0
    """In use, or in the cache of a process's allocator."""


class FakeEngine:
    """Memory of a bounded size, and one copy stream.

    With a driver given, freed memory is another engine's once the end of its pool has run.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        memory_bytes: int = 1 << 40,
        *,
        has_bfloat16: bool = False,
        driver: FakeDriver | None = None,
    ) -> None:
        self.has_bfloat16 = has_bfloat16
        self._driver = driver or FakeDriver(memory_bytes)
        self._is_shared = driver is not None
        self._freed_bytes = 0
        """Freed, with a pool that has not ended yet."""
        self.memory_bytes = self._driver.memory_bytes
        self.allocated_bytes = 0
        self.pinned_bytes = 0
        self.refused = 0
        """Allocations that did not fit."""
        self.done_order: list[int] = []
        self.spoiled: list[int] = []
        """Copies whose source was changed before they were made."""
        self.failure: Exception | None = None
        """What every call would raise of a device that has failed for good."""
        self.registered: list[int] = []
        """Addresses of memory that is registered now."""
        self.registrations = 0
        self.refuses_to_register = False
        self.may_copy = threading.Event()
        self.may_copy.set()
        self._lock = threading.Lock()
        self._asked = 0
        self._stream: queue.SimpleQueue[FakeCopy] = queue.SimpleQueue()
        threading.Thread(target=self._run_stream, daemon=True).start()

    def allocate(self, size_bytes: int) -> torch.Tensor:
        with self._lock:
            if self._driver.taken_bytes + size_bytes > self.memory_bytes:
                free = self.memory_bytes - self._driver.taken_bytes
                self.refused += 1
                raise DeviceFull(
                    f"the device has {free} bytes free, {size_bytes} are needed",
                    missing_bytes=size_bytes - free,
                )
            self._driver.taken_bytes += size_bytes
            self.allocated_bytes += size_bytes
        return torch.frombuffer(_Slab(self, size_bytes), dtype=torch.uint8)

    def free(self, size_bytes: int) -> None:
        """Called when the last view of a slab is gone."""
        with self._lock:
            self.allocated_bytes -= size_bytes
            if self._is_shared:
                self._freed_bytes += size_bytes
            else:
                self._driver.taken_bytes -= size_bytes

    def free_bytes(self) -> int:
        with self._lock:
            return self.memory_bytes - self._driver.taken_bytes

    def register(self, region: torch.Tensor) -> None:
        if self.refuses_to_register:
            raise RuntimeError("CUDA error: out of memory")
        self.registered.append(region.data_ptr())
        self.registrations += 1

    def unregister(self, region: torch.Tensor) -> None:
        self.registered.remove(region.data_ptr())

    def end_of(self, slab: torch.Tensor) -> Callable[[], None] | None:
        return self._end_pools if self._is_shared else None

    def _end_pools(self) -> None:
        with self._lock:
            self._driver.taken_bytes -= self._freed_bytes
            self._freed_bytes = 0

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
        self._engine.free(len(self))


def _checksum(memory: torch.Tensor) -> int:
    return zlib.crc32(memory.numpy().tobytes())
