"""CUDA's implementation of `CopyEngine`: slabs, pinned buffers, and a separate stream for copies.

Can be imported without a GPU; CUDA is initialised by the constructor of `CudaEngine`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from runtime.device.address_ranges import AddressRanges
from runtime.device.cuda_virtual_memory import CudaVirtualMemory
from runtime.device.forward_graphs import CudaGraphMaker
from runtime.errors import DeviceFull

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.device.forward_graphs import GraphMaker

REGISTER_READ_ONLY = 8
"""`cudaHostRegisterReadOnly`: the driver pins the pages of the file, and copies none of them."""
LOWEST_PRIORITY = 0
"""Of streams; torch's default stream has it, too."""


class _Bytes:
    """Device memory as torch takes it without a copy; nobody frees it with the tensor."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }


class CudaEngine:
    """The current device of the pod's environment (`CUDA_VISIBLE_DEVICES`, MPS share)."""

    def __init__(
        self, memory_share: float = 1.0, *, slab_pools: bool = False, cuda_graphs: bool = False
    ) -> None:
        """`cuda_graphs`: slabs have fixed addresses, and forwards are captured (`forward_graphs`).

        `slab_pools`: each slab has a pool of torch's allocator for itself.

        Its memory then goes back to the driver when it is freed. Otherwise it stays in torch's
        cache, where other processes cannot use it, until an allocation of this one fails.
        """
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
        self._memory_share = memory_share
        if memory_share < 1:  # MPS divides the compute only
            torch.cuda.set_per_process_memory_fraction(memory_share, self.device)
        self._slab_pools = slab_pools
        self.graphs: GraphMaker | None = CudaGraphMaker() if cuda_graphs else None
        memory = CudaVirtualMemory(torch.cuda.current_device()) if cuda_graphs else None
        self._ranges = AddressRanges(memory) if memory else None
        self._pools: dict[int, torch.cuda.MemPool] = {}
        """By address of the slab."""
        # Of the lowest priority, which orders kernels alone: CUDA says that it has no effect on
        # copies between host and device. What bounds the wait of an inference's inputs for them
        # are their sizes and how many are under way (`staged_memory.MAX_COPIES`).
        self._copies = torch.cuda.Stream(  # type: ignore[no-untyped-call]  # torch's
            self.device, priority=LOWEST_PRIORITY
        )

    def allocate(self, size_bytes: int, layout: str = "") -> torch.Tensor:
        """One block of the caching allocator, or memory at fixed addresses; raises DeviceFull.

        It belongs to the default stream, where inference runs and where it is freed. Copies into
        it are complete before any inference uses it, so the copy stream needs no record of it.
        """
        try:
            slab = self._block(size_bytes, layout)
        except (torch.OutOfMemoryError, DeviceFull):
            torch.cuda.empty_cache()  # cached blocks of other sizes may take the memory
            try:
                slab = self._block(size_bytes, layout)
            except (torch.OutOfMemoryError, DeviceFull) as error:
                free, total = torch.cuda.mem_get_info(self.device)
                raise DeviceFull(
                    f"{self.device} has {free} of {total} bytes free, {size_bytes} are needed",
                    missing_bytes=size_bytes - free,
                ) from error
        # The allocator reuses a block while kernels of the default stream may still read its old
        # contents: copies wait for those kernels once, and then run concurrently with later ones.
        self._copies.wait_stream(torch.cuda.default_stream(self.device))
        return slab

    def _block(self, size_bytes: int, layout: str) -> torch.Tensor:
        if self._ranges is not None and size_bytes:
            torch.cuda.set_device(self.device)  # the driver's calls need this thread's context
            if size_bytes > self.free_bytes():
                raise DeviceFull("the process has used its share of the device's memory")
            place = self._ranges.map(layout, size_bytes)
            return torch.as_tensor(_Bytes(place.address, size_bytes), device=self.device)
        if not self._slab_pools:
            return torch.empty(size_bytes, dtype=torch.uint8, device=self.device)
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool, self.device):
            slab = torch.empty(size_bytes, dtype=torch.uint8, device=self.device)
        self._pools[slab.data_ptr()] = pool
        return slab

    def free_bytes(self) -> int:
        """By the driver, with what torch keeps of freed memory, within the process's share."""
        free, total = torch.cuda.mem_get_info(self.device)
        used = torch.cuda.memory_allocated(self.device)
        unused = torch.cuda.memory_reserved(self.device) - used
        mapped = self._ranges.mapped_bytes if self._ranges else 0
        return min(int(free) + unused, int(self._memory_share * total) - used - mapped)

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
        """The end of its pool, or of its memory, which waits for the device."""
        if self._ranges is not None:
            return partial(self._unmap, slab.data_ptr()) if slab.nbytes else None
        pool = self._pools.pop(slab.data_ptr(), None)
        return None if pool is None else [pool].clear

    def _unmap(self, address: int) -> None:
        """Once no kernel and no copy can use it any more."""
        assert self._ranges is not None
        torch.cuda.set_device(self.device)
        torch.cuda.synchronize(self.device)
        self._ranges.unmap(address)

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
