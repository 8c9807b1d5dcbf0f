"""Discrete device memory: one allocation per model, filled through a ring of pinned buffers.

Bytes are read from the source into a buffer of the ring while earlier buffers are copied to the
device on a separate stream, concurrently with inference. A buffer is reused only after its copy.
A `CopyEngine` allocates and copies: CUDA, or a fake in tests.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from runtime.device.device_errors import release_frames
from runtime.storage.load_priority import LoadTicket
from runtime.storage.partial_file import ByteRange, split_spans
from runtime.weights.safetensors_files import DeviceWeights, view_of
from runtime.weights.weight_source import WeightSource

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Registered:
    """Mutable: guarded by the lock of the images."""

    region: torch.Tensor
    users: int = 0


class RegisteredImages:
    """Images of tier `host` that the driver has pinned: copies run from where they lie.

    Pinning takes longer than a copy, so it happens in the background, and lasts until the tier
    needs the room. Where the driver refuses, bytes go through the ring of buffers. Thread-safe.
    """

    def __init__(self, engine: CopyEngine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._by_name: OrderedDict[str, _Registered] = OrderedDict()
        """The least recently used first."""
        # One thread: a refusal leaves an error in CUDA's state of the thread, and kernels that it
        # launched next would fail with it.
        self._thread = ThreadPoolExecutor(1, "registrations")

    def acquire(self, source: WeightSource) -> tuple[str, torch.Tensor] | None:
        """The name and memory of a registered slab, until `release`; None: use the ring."""
        name = source.image_name
        with self._lock:
            image = self._by_name.get(name)
            if image is None:
                return None
            image.users += 1
            self._by_name.move_to_end(name)
            return name, image.region

    def release(self, name: str) -> None:
        with self._lock:
            self._by_name[name].users -= 1

    def register_later(self, source: WeightSource) -> Future[object] | None:
        """Done once the driver has taken or refused it; None: it has it, or all is closed."""
        if source.image_name in self._by_name:
            return None
        return self._begin(self._register, source.image_name, source.map_shared())

    def drop_later(self) -> None:
        self._begin(self.drop_one)

    def drop_one(self) -> bool:
        """Unregister and unmap the least recently used one; False if loads use all."""
        with self._lock:
            unused = (name for name, image in self._by_name.items() if not image.users)
            if (name := next(unused, None)) is None:
                return False
            image = self._by_name.pop(name)
        self._engine.unregister(image.region)
        return True

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        while self.drop_one():
            pass

    def _begin(self, work: Callable[..., object], *arguments: object) -> Future[object] | None:
        try:
            return self._thread.submit(work, *arguments)
        except RuntimeError:  # closed
            return None

    def _register(self, name: str, region: torch.Tensor) -> None:
        if name in self._by_name:
            return
        try:
            self._engine.register(region)
        except RuntimeError as error:
            extra = {"image": name, "bytes": region.nbytes, "error": error}
            logger.warning("host image not registered, copied through buffers", extra=extra)
            return
        with self._lock:
            self._by_name[name] = _Registered(region)


BUFFER_BYTES = 32 * 1024**2
"""As in ServerlessLLM: large enough that the cost of starting a copy is negligible."""
MAX_COPIES = 2
"""Copies under way at once: the next begins without a pause, and inputs of inferences wait for at
most two (1.3 ms at 50 GB/s)."""
READERS = min(8, max(4, len(os.sched_getaffinity(0))))
"""Threads that fill buffers; one thread copies 5 to 10 GB/s, PCIe Gen5 transfers 50."""
BUFFERS = READERS + MAX_COPIES
"""One for each reader, and for each copy under way."""
_CLOSED = "the pod's device is closed"


class CopyDone(Protocol):
    """One copy in progress."""

    def synchronize(self) -> None:
        """Block this thread until the copy is complete."""


class CopyEngine(Protocol):
    """A device's memory operations. Methods are thread-safe."""

    device: torch.device
    has_bfloat16: bool
    """Whether the device multiplies numbers of this type as such."""

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
        """Return once all that has begun is done; another model's error is none of the caller's."""
        with suppress(IndexError):
            while True:
                if (error := self._under_way.popleft().exception()) is not None:
                    logger.error("memory not given back", extra={"error": error})

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
    ) -> None:
        self.device = engine.device
        self.has_bfloat16 = engine.has_bfloat16
        self._engine = engine
        self._ring = StagingRing(engine, buffers=buffers, buffer_bytes=buffer_bytes)
        self._copies = CopyQueue(engine, max_copies)
        self._readers = ThreadPoolExecutor(readers, "reader")
        self._max_waiting, self._max_preload = 2 * readers, max(1, readers - 1)
        self._is_closed = False
        self._slab_ends = _SlabEnds()
        self.images = RegisteredImages(engine)
        """Those of tier `host` that loads copy from where they lie."""

    def put(self, source: WeightSource, ticket: LoadTicket | None = None) -> DeviceWeights:
        """Allocate a slab and fill it, once all of the source is here.

        Raises DeviceFull, LoadFailed, LoadCancelled; the slab is freed then.
        """
        source.wait_complete()
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
        image = self.images.acquire(source)
        copy = (
            partial(self._copy_registered, slab, image[1])
            if image
            else partial(self._copy_part, slab, source)
        )
        try:
            self._copy_all(source.layout.size_bytes, copy, ticket or LoadTicket())
        finally:
            self._engine.synchronize(slab)  # no copy may write to freed memory
            if image:
                self.images.release(image[0])

    def _copy_all(
        self, size_bytes: int, copy: Callable[[ByteRange], None], ticket: LoadTicket
    ) -> None:
        """Copy all parts, by several readers at once; none is being copied any more at the end.

        Few parts wait for the readers, of a preload fewer than there are readers: a load that a
        request waits for does not wait for all of another model.
        """
        work = [copy]  # taken away at the end: a reader's frame would keep it, and that a slab

        def copy_one(part: ByteRange) -> None:
            try:
                ticket.raise_if_cancelled()
                if self._is_closed:
                    raise CancelledError(_CLOSED)
                work[0](part)
            except BaseException as error:
                release_frames(error)
                raise

        copies: deque[Future[None]] = deque()
        try:
            for part in split_spans(size_bytes, self._ring.buffer_bytes):
                while len(copies) >= (self._max_waiting if ticket.is_urgent else self._max_preload):
                    copies.popleft().result()
                copies.append(self._submit(copy_one, part))
            while copies:
                copies.popleft().result()
        finally:
            for each in copies:
                each.cancel()  # those that wait, if one has failed
            wait(copies)
            work.clear()
        ticket.raise_if_cancelled()

    def _submit(self, copy_one: Callable[[ByteRange], None], part: ByteRange) -> Future[None]:
        try:
            return self._readers.submit(copy_one, part)
        except RuntimeError as error:
            if self._is_closed:
                raise CancelledError(_CLOSED) from error
            raise

    def _copy_registered(self, slab: torch.Tensor, region: torch.Tensor, part: ByteRange) -> None:
        """In parts, as through the ring, so that inputs of inferences do not wait for all."""
        where = (0, part.start, part.size_bytes)
        self._copies.start(slab.narrow(*where), region.narrow(*where))

    def free_bytes(self) -> int:
        """Memory that no process has taken, or that this one can use again."""
        return self._engine.free_bytes()

    def register(self, image: WeightSource) -> Future[object] | None:
        """Have loads copy from where an image of tier `host` lies, once what this returns is done.

        None: they do already. Blocks for the mapping alone.
        """
        return self.images.register_later(image)

    def _copy_part(self, slab: torch.Tensor, source: WeightSource, part: ByteRange) -> None:
        buffer = self._ring.take()
        try:
            staged = buffer.memory.narrow(0, 0, part.size_bytes)
            source.read_into(part.start, staged.numpy().data)
            target = slab.narrow(0, part.start, part.size_bytes)
            buffer.copy = self._copies.start(target, staged)
        finally:
            self._ring.put_back(buffer)

    def check(self) -> None:
        """Raise the device's error if it has failed for good. Blocks until its work has ended."""
        self._engine.check()

    def close(self) -> None:
        """Stop the readers; pinned memory is freed with the object."""
        self._is_closed = True
        self._readers.shutdown()
        self._slab_ends.close()
        self.images.close()
