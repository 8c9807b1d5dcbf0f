"""Device memory that is not host memory: one allocation per model, filled through a pinned ring.

Bytes are read from the source into a buffer of the ring while the buffers before it are copied to
the device on a stream of their own, beside running inference. A buffer is filled again only when
its copy is over, and taken only for bytes that are there: a slow download holds none up. What
allocates and copies is a `CopyEngine`: CUDA, or a fake one in tests.
"""

from __future__ import annotations

import queue
import threading
import traceback
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from runtime.weights.slab import DeviceWeights, view_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    import torch

    from runtime.weights.weight_source import SlabPart, WeightSource

BUFFER_BYTES = 32 * 1024**2
"""As ServerlessLLM has it; large enough that the start of a copy costs nothing."""
BUFFERS = 8
READERS = 4
"""Threads that fill buffers; one alone copies 5 to 10 GB/s, a bus of PCIe Gen5 takes 50."""


class CopyDone(Protocol):
    """Stands for one copy under way."""

    def wait(self) -> None:
        """Return once the copy is over."""


class CopyEngine(Protocol):
    """What a device offers. Methods may be called from many threads."""

    device: torch.device

    def allocate(self, size_bytes: int) -> torch.Tensor:
        """Uninitialised uint8 memory on the device; raises DeviceFull."""

    def pinned(self, size_bytes: int) -> torch.Tensor:
        """Uint8 memory of the host that the device can read by itself."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> CopyDone:
        """Begin copying pinned memory to the device, after the copies begun before it."""

    def settle(self, slab: torch.Tensor) -> None:
        """Return once all copies into the slab are over and the device's work may read it."""


@dataclass(slots=True)
class _Buffer:
    """A buffer of the ring. Mutable: belongs to whoever took it."""

    memory: torch.Tensor
    in_flight: CopyDone | None = None


class StagingRing:
    """Pinned buffers, made once: pinning costs as much as several copies."""

    def __init__(self, engine: CopyEngine, *, buffers: int, buffer_bytes: int) -> None:
        self.buffer_bytes = buffer_bytes
        self._free: queue.SimpleQueue[_Buffer] = queue.SimpleQueue()
        for _ in range(buffers):
            self._free.put(_Buffer(engine.pinned(buffer_bytes)))

    def take(self) -> _Buffer:
        """The buffer that has been in flight longest, once its copy is over."""
        buffer = self._free.get()
        try:
            if buffer.in_flight is not None:
                buffer.in_flight.wait()
                buffer.in_flight = None
        except BaseException:
            self._free.put(buffer)
            raise
        return buffer

    def give_back(self, buffer: _Buffer) -> None:
        """Let others have the buffer after its copy."""
        self._free.put(buffer)


class StagedMemory:
    """Slabs on a device that an engine reaches. One ring serves all loads of the pod."""

    def __init__(
        self,
        engine: CopyEngine,
        *,
        buffers: int = BUFFERS,
        buffer_bytes: int = BUFFER_BYTES,
        readers: int = READERS,
    ) -> None:
        self.device = engine.device
        self._engine = engine
        self._ring = StagingRing(engine, buffers=buffers, buffer_bytes=buffer_bytes)
        self._readers = ThreadPoolExecutor(readers, "reader")

    def put(self, source: WeightSource) -> DeviceWeights:
        """Allocate a slab and fill it with parts as they can be read.

        Raises DeviceFull, LoadFailed, LoadCancelled; nothing of the slab is left then.
        """
        layout = source.layout
        slab = self._engine.allocate(layout.size_bytes)
        try:
            self._fill(slab, source)
            source.wait_verified()
        except BaseException as error:
            self._engine.settle(slab)  # no copy may still write to memory that is given back
            traceback.clear_frames(error.__traceback__)  # which the error would keep alive
            del slab
            raise
        self._engine.settle(slab)
        tensors = {tensor.name: view_of(slab, tensor) for tensor in layout.tensors}
        return DeviceWeights(tensors, layout.size_bytes)

    def _fill(self, slab: torch.Tensor, source: WeightSource) -> None:
        """Copy all parts; after an error those under way end before it is raised."""
        has_failed = threading.Event()
        copies: list[Future[None]] = []
        try:
            for part in source.parts(self._ring.buffer_bytes):
                if has_failed.is_set():
                    break
                copy = _unless(has_failed, self._copy_part)
                copies.append(self._readers.submit(copy, slab, source, part))
        except BaseException:
            has_failed.set()
            _await_ends(copies)
            raise
        _await_ends(copies)
        for each in copies:
            each.result()

    def _copy_part(self, slab: torch.Tensor, source: WeightSource, part: SlabPart) -> None:
        buffer = self._ring.take()
        try:
            staged = buffer.memory.narrow(0, 0, part.size_bytes)
            source.read_into(part.offset, staged.numpy().data)
            target = slab.narrow(0, part.offset, part.size_bytes)
            buffer.in_flight = self._engine.copy(target, staged)
        finally:
            self._ring.give_back(buffer)

    def close(self) -> None:
        """End the readers; pinned memory goes with the object."""
        self._readers.shutdown(wait=True, cancel_futures=True)


def _await_ends(copies: Sequence[Future[None]]) -> None:
    """As `concurrent.futures.wait`, which never returns for what `shutdown` cancelled."""
    for each in copies:
        with suppress(CancelledError):
            each.exception()


def _unless(
    has_failed: threading.Event, copy_part: Callable[[torch.Tensor, WeightSource, SlabPart], None]
) -> Callable[[torch.Tensor, WeightSource, SlabPart], None]:
    """Parts that come after a failed one are not read."""

    def run(slab: torch.Tensor, source: WeightSource, part: SlabPart) -> None:
        if has_failed.is_set():
            return
        try:
            copy_part(slab, source, part)
        except BaseException:
            has_failed.set()
            raise

    return run
