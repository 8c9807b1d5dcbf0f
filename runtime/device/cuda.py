"""CUDA's implementation of `CopyEngine`: slabs, pinned buffers, and a separate stream for copies.

Can be imported without a GPU; CUDA is initialised by the constructor of `CudaEngine`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from runtime.errors import DeviceFull

if TYPE_CHECKING:
    from collections.abc import Callable

REGISTER_READ_ONLY = 8
"""`cudaHostRegisterReadOnly`: the driver pins the pages of the file, and copies none of them."""


class CudaEngine:
    """The current device of the pod's environment (`CUDA_VISIBLE_DEVICES`, MPS share)."""

    def __init__(self, memory_share: float = 1.0, *, slab_pools: bool = False) -> None:
        """`slab_pools`: each slab has a pool of torch's allocator for itself.

        Its memory then goes back to the driver when it is freed. Otherwise it stays in torch's
        cache, where other processes cannot use it, until an allocation of this one fails.
        """
        self.device = torch.device("cuda", torch.cuda.current_device())
        if memory_share < 1:  # MPS divides the compute only
            torch.cuda.set_per_process_memory_fraction(memory_share, self.device)
        self._slab_pools = slab_pools
        self._pools: dict[int, torch.cuda.MemPool] = {}
        """By address of the slab."""
        self._copies = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch's

    def allocate(self, size_bytes: int) -> torch.Tensor:
        """One block of the caching allocator; raises DeviceFull.

        It belongs to the default stream, where inference runs and where it is freed. Copies into
        it are complete before any inference uses it, so the copy stream needs no record of it.
        """
        try:
            slab = self._block(size_bytes)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()  # cached blocks of other sizes may take the memory
            try:
                slab = self._block(size_bytes)
            except torch.OutOfMemoryError as error:
                free, total = torch.cuda.mem_get_info(self.device)
                raise DeviceFull(
                    f"{self.device} has {free} of {total} bytes free, {size_bytes} are needed",
                    missing_bytes=size_bytes - free,
                ) from error
        # The allocator reuses a block while kernels of the default stream may still read its old
        # contents: copies wait for those kernels once, and then run concurrently with later ones.
        self._copies.wait_stream(torch.cuda.default_stream(self.device))
        return slab

    def _block(self, size_bytes: int) -> torch.Tensor:
        if not self._slab_pools:
            return torch.empty(size_bytes, dtype=torch.uint8, device=self.device)
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool, self.device):
            slab = torch.empty(size_bytes, dtype=torch.uint8, device=self.device)
        self._pools[slab.data_ptr()] = pool
        return slab

    def register(self, region: torch.Tensor) -> None:
        """Raises RuntimeError, as where the container's limit of locked memory is too low."""
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch's
        torch.cuda.check_error(
            cudart.cudaHostRegister(region.data_ptr(), region.nbytes, REGISTER_READ_ONLY)
        )

    def unregister(self, region: torch.Tensor) -> None:
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch's
        torch.cuda.check_error(cudart.cudaHostUnregister(region.data_ptr()))

    def end_of(self, slab: torch.Tensor) -> Callable[[], None] | None:
        """The end of its pool, which waits for the device."""
        pool = self._pools.pop(slab.data_ptr(), None)
        return None if pool is None else [pool].clear

    def allocate_pinned(self, size_bytes: int) -> torch.Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> torch.cuda.Event:
        """Start a copy on the copy stream."""
        with torch.cuda.stream(self._copies):
            target.copy_(source, non_blocking=True)
            # Blocking: by default, waiting for an event spins, and takes a core from inference.
            done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # torch's
            done.record(self._copies)
        return done

    def synchronize(self, slab: torch.Tensor) -> None:
        self._copies.synchronize()

    def check(self) -> None:
        torch.cuda.synchronize(self.device)
