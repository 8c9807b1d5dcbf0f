"""Part of `cuda.bindings.driver` without a GPU: virtual memory, whose rules it enforces.

Ranges lie in the memory of this process, so what is mapped can be read and written. Types, enums
and signatures are those of the real module, which can be imported without a driver.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from typing import Any

from cuda.bindings import driver as real

GRANULARITY_BYTES = 1 << 16
_SUCCESS = real.CUresult.CUDA_SUCCESS
_INVALID = real.CUresult.CUDA_ERROR_INVALID_VALUE


class FakeCudaDriver:
    """One device. Calls return what the module's functions of these names do."""

    CUresult = real.CUresult
    CUmemLocation = real.CUmemLocation
    CUmemLocationType = real.CUmemLocationType
    CUmemAllocationProp = real.CUmemAllocationProp
    CUmemAllocationType = real.CUmemAllocationType
    CUmemAccessDesc = real.CUmemAccessDesc
    CUmemAccess_flags = real.CUmemAccess_flags
    CUmemAllocationGranularity_flags = real.CUmemAllocationGranularity_flags

    def __init__(self, memory_bytes: int = 1 << 40) -> None:
        self.memory_bytes = memory_bytes
        self.handles: dict[int, int] = {}
        """Bytes of memory, by handle."""
        self.ranges: dict[int, mmap.mmap] = {}
        """Reserved, by address."""
        self.mapped: dict[int, int] = {}
        """Handles, by address."""
        self.allowed: set[int] = set()
        self.fails: dict[str, real.CUresult] = {}
        """What calls of these names return."""
        self._lock = threading.Lock()
        self._next = 1

    @property
    def taken_bytes(self) -> int:
        return sum(self.handles.values())

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if name.startswith("cu"):
            return lambda *arguments: self._result(name, found, arguments)
        return found

    def _result(self, name: str, function: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        if name in self.fails:
            return (self.fails[name], *([None] * (name in _RETURNING)))
        with self._lock:
            result: tuple[Any, ...] = function(*arguments)
        return result

    def cuDeviceGet(self, ordinal: int) -> tuple[Any, ...]:
        return _SUCCESS, real.CUdevice(ordinal)

    def cuMemGetAllocationGranularity(
        self, prop: real.CUmemAllocationProp, option: Any
    ) -> tuple[Any, ...]:
        assert prop.location.type == real.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        assert isinstance(option, real.CUmemAllocationGranularity_flags)
        return _SUCCESS, GRANULARITY_BYTES

    def cuMemAddressReserve(
        self, size: int, alignment: int, addr: int, flags: int
    ) -> tuple[Any, ...]:
        if size % GRANULARITY_BYTES or alignment or addr or flags:
            return _INVALID, None
        region = mmap.mmap(-1, size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(region))
        self.ranges[address] = region
        return _SUCCESS, real.CUdeviceptr(address)

    def cuMemCreate(self, size: int, prop: real.CUmemAllocationProp, flags: int) -> tuple[Any, ...]:
        kind = real.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        if size % GRANULARITY_BYTES or flags or prop.type != kind:
            return _INVALID, None
        if self.taken_bytes + size > self.memory_bytes:
            return real.CUresult.CUDA_ERROR_OUT_OF_MEMORY, None
        handle, self._next = self._next, self._next + 1
        self.handles[handle] = size
        return _SUCCESS, real.CUmemGenericAllocationHandle(handle)

    def cuMemMap(
        self, ptr: int, size: int, offset: int, handle: int, flags: int
    ) -> tuple[Any, ...]:
        is_whole = ptr in self.ranges and len(self.ranges[ptr]) == size
        if (
            not is_whole
            or ptr in self.mapped
            or self.handles.get(handle) != size
            or offset
            or flags
        ):
            return (_INVALID,)
        self.mapped[ptr] = handle
        return (_SUCCESS,)

    def cuMemSetAccess(self, ptr: int, size: int, desc: Any, count: int) -> tuple[Any, ...]:
        readwrite = real.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        is_mapped = ptr in self.mapped and len(self.ranges[ptr]) == size
        if not is_mapped or len(desc) != count or desc[0].flags != readwrite:
            return (_INVALID,)
        self.allowed.add(ptr)
        return (_SUCCESS,)

    def cuMemUnmap(self, ptr: int, size: int) -> tuple[Any, ...]:
        if ptr not in self.mapped or len(self.ranges[ptr]) != size:
            return (_INVALID,)
        del self.mapped[ptr]
        self.allowed.discard(ptr)
        ctypes.memset(ptr, 0xA5, size)  # whoever reads it now, reads no weights
        return (_SUCCESS,)

    def cuMemRelease(self, handle: int) -> tuple[Any, ...]:
        return (_SUCCESS,) if self.handles.pop(handle, None) is not None else (_INVALID,)

    def cuMemAddressFree(self, ptr: int, size: int) -> tuple[Any, ...]:
        if ptr in self.mapped or ptr not in self.ranges or len(self.ranges[ptr]) != size:
            return (_INVALID,)
        del self.ranges[ptr]
        return (_SUCCESS,)


_RETURNING = frozenset({
    "cuDeviceGet", "cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemCreate",
})  # fmt: skip
