"""Discrete device memory: one allocation per model, filled through a ring of pinned buffers.

Bytes are read from the source into a buffer of the ring while earlier buffers are copied to the
device on a separate stream, concurrently with inference. A buffer is reused only after its copy,
and taken only for bytes that have arrived, so a slow download holds no buffer. A `CopyEngine`
allocates and copies: CUDA, or a fake in tests.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from runtime.device.device_errors import release_frames
from runtime.device.forward_graphs import GraphMaker
from runtime.device.registered_images import RegisteredImages
from runtime.storage.load_priority import LoadTicket
from runtime.weights.safetensors_files import DeviceWeights, view_of
from runtime.weights.weight_source import SlabPart, WeightSource

if TYPE_CHECKING:
    import torch


@dataclass(eq=False, slots=True)
class _Transfer:
    """One load. Mutable: guarded by the lock of the pool."""

    ticket: LoadTicket
    copy: Callable[[SlabPart], None]
    waiting: deque[SlabPart] = field(default_factory=deque)
    under_way: int = 0
    begun: int = 0
    """Parts that a reader has taken."""
    error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        self.error = self.error or error
        self.waiting.clear()


def _ended(_: SlabPart) -> None:
    """In place of the copy of a transfer that is over."""


class ReaderPool:
    """Threads that transfer the parts of all running loads. Threads of loads call `run`.

    Urgent loads first; of equally urgent ones, the load with the fewest parts so far, so that a
    small load does not end after a large one that began before it. Preloads leave one thread free.
    """

    def __init__(self, readers: int) -> None:
        self._max_preload_readers = max(1, readers - 1)
        self._max_waiting = 2 * readers
        """Parts that one load may queue: the source of the others is not read yet."""
        self._changed = threading.Condition()
        self._transfers: list[_Transfer] = []
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"reader-{number}", daemon=True)
            for number in range(readers)
        ]
        for thread in self._threads:
            thread.start()

    def run(
        self,
        parts: Iterator[SlabPart],
        copy: Callable[[SlabPart], None],
        ticket: LoadTicket | None = None,
    ) -> None:
        """Return once `copy` was called for each part, by several readers at once.

        Raises LoadCancelled soon after the ticket is cancelled, CancelledError when the pool is
        closed, and errors of `parts` and `copy`; no part is being copied any more then.
        """
        transfer = _Transfer(ticket or LoadTicket(), copy)
        transfer.ticket.add_listener(self._notify)
        with self._changed:
            self._transfers.append(transfer)
        try:
            for part in parts:
                if not self._queue(transfer, part):
                    break
        except BaseException as error:
            with self._changed:
                transfer.fail(error)
        finally:
            self._finish(transfer)
            transfer.ticket.remove_listener(self._notify)
            transfer.copy = _ended  # frames of an error may keep the transfer, which keeps a slab
        if transfer.error is not None:
            raise transfer.error

    def close(self) -> None:
        """End all transfers and stop the readers."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _queue(self, transfer: _Transfer, part: SlabPart) -> bool:
        """Queue a part once there is room for it; False if the transfer has failed."""
        with self._changed:
            while not self._has_ended(transfer) and len(transfer.waiting) >= self._max_waiting:
                self._changed.wait()
            if self._has_ended(transfer):
                return False
            transfer.waiting.append(part)
            self._changed.notify_all()
            return True

    def _finish(self, transfer: _Transfer) -> None:
        """Wait until no part is left or under way."""
        with self._changed:
            while (transfer.waiting and not self._has_ended(transfer)) or transfer.under_way:
                self._changed.wait()
            self._has_ended(transfer)
            self._transfers.remove(transfer)

    def _has_ended(self, transfer: _Transfer) -> bool:
        """Whether the transfer has failed, was cancelled, or must end with the pool."""
        if self._is_closed and transfer.waiting:
            transfer.fail(CancelledError("the pod's device is closed"))
        if transfer.ticket.is_cancelled and transfer.waiting:
            try:
                transfer.ticket.raise_if_cancelled()
            except BaseException as error:
                transfer.fail(error)
        return transfer.error is not None

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # The readers

    def _serve(self) -> None:
        while (taken := self._take()) is not None:
            transfer, part = taken
            error: BaseException | None = None
            try:
                transfer.copy(part)
            except BaseException as raised:  # raised again by `run`
                error = raised
            with self._changed:
                transfer.under_way -= 1
                if error is not None:
                    transfer.fail(error)
                del taken, transfer, error  # they keep a slab alive, until `run` may return
                self._changed.notify_all()

    def _take(self) -> tuple[_Transfer, SlabPart] | None:
        """Wait for the next part; None when the pool closes."""
        with self._changed:
            while not self._is_closed:
                transfer = self._next()
                if transfer is not None:
                    transfer.under_way += 1
                    transfer.begun += 1
                    part = transfer.waiting.popleft()
                    self._changed.notify_all()
                    return transfer, part
                self._changed.wait()
            return None

    def _next(self) -> _Transfer | None:
        preloading = sum(each.under_way for each in self._transfers if not each.ticket.is_urgent)
        ready = [
            each
            for each in self._transfers
            if each.waiting
            and not self._has_ended(each)
            and (each.ticket.is_urgent or preloading < self._max_preload_readers)
        ]
        return min(ready, key=lambda each: (not each.ticket.is_urgent, each.begun), default=None)


BUFFER_BYTES = 32 * 1024**2
"""As in ServerlessLLM: large enough that the cost of starting a copy is negligible."""
MAX_COPIES = 2
"""Copies under way at once: the next begins without a pause, and inputs of inferences wait for at
most two (1.3 ms at 50 GB/s)."""
READERS = min(8, max(4, len(os.sched_getaffinity(0))))
"""Threads that fill buffers; one thread copies 5 to 10 GB/s, PCIe Gen5 transfers 50."""
BUFFERS = READERS + MAX_COPIES
"""One for each reader, and for each copy under way."""


class CopyDone(Protocol):
    """One copy in progress."""

    def synchronize(self) -> None:
        """Block this thread until the copy is complete."""


class CopyEngine(Protocol):
    """A device's memory operations. Methods are thread-safe."""

    device: torch.device
    has_bfloat16: bool
    """Whether the device multiplies numbers of this type as such."""

    graphs: GraphMaker | None
    """What captures forwards; None: nothing does."""

    def allocate(self, size_bytes: int) -> torch.Tensor:
        """Uninitialised uint8 memory on the device; raises DeviceFull."""

    def free_bytes(self) -> int:
        """Memory that no process has taken, or that this one can use again."""

    def allocate_pinned(self, size_bytes: int) -> torch.Tensor:
        """Page-locked uint8 memory of the host, which the device reads by DMA."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> CopyDone:
        """Start copying pinned memory to the device, after all copies started earlier."""

    def register(self, region: torch.Tensor) -> None:
        """Pin memory of the host that the device only reads; raises RuntimeError."""

    def unregister(self, region: torch.Tensor) -> None:
        """Undo `register`."""

    def end_of(self, slab: torch.Tensor) -> Callable[[], None] | None:
        """What lets other processes have the slab's memory, once its tensors are dropped.

        It blocks. None: dropping them is all.
        """

    def synchronize(self, slab: torch.Tensor) -> None:
        """Block until all copies into the slab are complete and inference may read it."""

    def check(self) -> None:
        """Block until all work has ended; raises the error of a device that failed for good."""


@dataclass(slots=True)
class _Buffer:
    """A buffer of the ring. Mutable: owned by the thread that took it."""

    memory: torch.Tensor
    copy: CopyDone | None = None


class StagingRing:
    """Pinned buffers, allocated once: pinning costs as much as several copies."""

    def __init__(self, engine: CopyEngine, *, buffers: int, buffer_bytes: int) -> None:
        self.buffer_bytes = buffer_bytes
        self._free: queue.SimpleQueue[_Buffer] = queue.SimpleQueue()
        for _ in range(buffers):
            self._free.put(_Buffer(engine.allocate_pinned(buffer_bytes)))

    def take(self) -> _Buffer:
        """The buffer returned longest ago; waits for its copy."""
        buffer = self._free.get()
        try:
            if buffer.copy is not None:
                buffer.copy.synchronize()
                buffer.copy = None
        except BaseException:
            self._free.put(buffer)
            raise
        return buffer

    def put_back(self, buffer: _Buffer) -> None:
        self._free.put(buffer)


class CopyQueue:
    """Bounds the copies under way on the device's only copy stream."""

    def __init__(self, engine: CopyEngine, max_copies: int) -> None:
        self._engine = engine
        self._max_copies = max_copies
        self._under_way: deque[CopyDone] = deque()
        self._lock = threading.Lock()

    def start(self, target: torch.Tensor, source: torch.Tensor) -> CopyDone:
        """Start a copy once fewer than the maximum are under way."""
        with self._lock:
            while len(self._under_way) >= self._max_copies:
                self._under_way.popleft().synchronize()
            copy = self._engine.copy(target, source)
            self._under_way.append(copy)
            return copy


class _SlabEnds:
    """Gives memory back in a thread, since the driver waits for the device, and then the loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "slab-ends")
        self._under_way: deque[Future[None]] = deque()

    def begin_by(self, end: Callable[[], None] | None) -> Callable[[], None]:
        """A function that begins `end`, and does not block."""
        return partial(self._begin, end) if end is not None else lambda: None

    def _begin(self, end: Callable[[], None]) -> None:
        try:
            self._under_way.append(self._thread.submit(end))
        except RuntimeError:  # closed, and nobody waits for what this thread does
            end()

    def wait(self) -> None:
        """Return once all that has begun is done."""
        with suppress(IndexError):
            while True:
                self._under_way.popleft().result()

    def close(self) -> None:
        self._thread.shutdown()


class StagedMemory:
    """Slabs on a device. All loads of the pod share one ring."""

    def __init__(
        self,
        engine: CopyEngine,
        *,
        buffers: int = BUFFERS,
        buffer_bytes: int = BUFFER_BYTES,
        readers: int = READERS,
        max_copies: int = MAX_COPIES,
        registered_bytes: int = 0,
    ) -> None:
        """`registered_bytes`: of images of tier `host` that stay registered with the driver."""
        self.device = engine.device
        self.has_bfloat16 = engine.has_bfloat16
        self.graphs = engine.graphs
        self._engine = engine
        self._ring = StagingRing(engine, buffers=buffers, buffer_bytes=buffer_bytes)
        self._copies = CopyQueue(engine, max_copies)
        self._readers = ReaderPool(readers)
        self._slab_ends = _SlabEnds()
        self._images = RegisteredImages(engine, registered_bytes)

    def put(self, source: WeightSource, ticket: LoadTicket | None = None) -> DeviceWeights:
        """Allocate a slab and fill it with the source's parts as they become readable.

        Urgent tickets come first. Raises DeviceFull, LoadFailed, LoadCancelled; the slab is freed
        then.
        """
        layout = source.layout
        self._slab_ends.wait()
        slab = self._engine.allocate(layout.size_bytes)
        end = self._slab_ends.begin_by(self._engine.end_of(slab))
        try:
            self._fill(slab, source, ticket)
        except BaseException as error:
            release_frames(error)  # they would keep the slab alive
            del slab
            end()
            raise
        tensors = {tensor.name: view_of(slab, tensor) for tensor in layout.tensors}
        return DeviceWeights(tensors, layout.size_bytes, end)

    def _fill(self, slab: torch.Tensor, source: WeightSource, ticket: LoadTicket | None) -> None:
        image = self._images.acquire(source)
        copy = (
            partial(self._copy_registered, slab, image[1])
            if image
            else partial(self._copy_part, slab, source)
        )
        try:
            self._readers.run(source.parts(self._ring.buffer_bytes), copy, ticket)
            source.wait_verified()
        finally:
            self._engine.synchronize(slab)  # no copy may write to freed memory
            if image:
                self._images.release(image[0])
        if not image:
            self._images.register_later(source)

    def _copy_registered(self, slab: torch.Tensor, region: torch.Tensor, part: SlabPart) -> None:
        """In parts, as through the ring, so that inputs of inferences do not wait for all."""
        where = (0, part.offset, part.size_bytes)
        self._copies.start(slab.narrow(*where), region.narrow(*where))

    def free_bytes(self) -> int:
        """Memory that no process has taken, or that this one can use again."""
        return self._engine.free_bytes()

    def drop_registered(self) -> bool:
        """Let tier `host` evict images that no load copies from; False without any."""
        return self._images.drop_unused()

    def _copy_part(self, slab: torch.Tensor, source: WeightSource, part: SlabPart) -> None:
        buffer = self._ring.take()
        try:
            staged = buffer.memory.narrow(0, 0, part.size_bytes)
            source.read_into(part.offset, staged.numpy().data)
            target = slab.narrow(0, part.offset, part.size_bytes)
            buffer.copy = self._copies.start(target, staged)
        finally:
            self._ring.put_back(buffer)

    def check(self) -> None:
        """Raise the device's error if it has failed for good. Blocks until its work has ended."""
        self._engine.check()

    def close(self) -> None:
        """Stop the readers; pinned memory is freed with the object."""
        self._readers.close()
        self._slab_ends.close()
        self._images.close()
