"""What CUDA does for staged memory: slabs, pinned buffers, and copies on a stream of their own.

Importable without a GPU; CUDA is first touched when a `CudaEngine` is made.
"""

from __future__ import annotations

import torch

from runtime.errors import DeviceFull


class CudaEngine:
    """The current device of the pod's environment (`CUDA_VISIBLE_DEVICES`, MPS share)."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._copies = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch's

    def allocate(self, size_bytes: int) -> torch.Tensor:
        """One block of the caching allocator; raises DeviceFull.

        It belongs to the default stream, where inference runs and where it is freed: copies into
        it are over before anybody sees it, so the copy stream needs no record of it.
        """
        try:
            slab = self._block(size_bytes)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()  # blocks of other sizes may be all that is in the way
            try:
                slab = self._block(size_bytes)
            except torch.OutOfMemoryError as error:
                free, total = torch.cuda.mem_get_info(self.device)
                raise DeviceFull(
                    f"{self.device} has {free} of {total} bytes free, {size_bytes} are needed"
                ) from error
        # A block is handed out again while kernels of the default stream may still read what was
        # in it: copies wait for those once, and then run beside whatever comes later.
        self._copies.wait_stream(torch.cuda.default_stream(self.device))
        return slab

    def _block(self, size_bytes: int) -> torch.Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, device=self.device)

    def pinned(self, size_bytes: int) -> torch.Tensor:
        """Page-locked memory."""
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> CudaCopyDone:
        """Begin a copy on the copy stream."""
        with torch.cuda.stream(self._copies):
            target.copy_(source, non_blocking=True)
            # Who waits for it sleeps: by default CUDA spins, and takes a core from inference.
            done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch's
            done.record(self._copies)
        return CudaCopyDone(done)

    def settle(self, slab: torch.Tensor) -> None:
        """Wait for the copy stream."""
        del slab
        self._copies.synchronize()


class CudaCopyDone:
    """An event on the copy stream."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self) -> None:
        """Block this thread, not the device."""
        self._event.synchronize()
