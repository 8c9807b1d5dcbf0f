"""CUDA's virtual memory management (`cuMem*`) by `cuda.bindings.driver`, which torch brings along.

Can be imported without a GPU. Source: CUDA Driver API, section "Virtual Memory Management".
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from runtime.errors import DeviceFailed, DeviceFull


class CudaVirtualMemory:
    """`VirtualMemory` of one device, whose context must be current in the calling threads."""

    def __init__(self, device: int, driver: Any = None) -> None:
        """`device`: its number in this process, as torch counts. Raises DeviceFailed.

        `driver`: the module `cuda.bindings.driver`.
        """
        self._driver = driver or import_module("cuda.bindings.driver")
        (number,) = self._call("cuDeviceGet", device)
        location = self._driver.CUmemLocation()
        location.type = self._driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        location.id = int(number)
        self._properties = self._driver.CUmemAllocationProp()
        self._properties.type = self._driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._properties.location = location
        self._access = self._driver.CUmemAccessDesc()
        self._access.location = location
        self._access.flags = self._driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        kinds = self._driver.CUmemAllocationGranularity_flags
        (grain,) = self._call(
            "cuMemGetAllocationGranularity",
            self._properties,
            kinds.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
        )
        self.granularity_bytes = int(grain)

    def reserve(self, size_bytes: int) -> int:
        (address,) = self._call("cuMemAddressReserve", size_bytes, 0, 0, 0)
        return int(address)

    def create(self, size_bytes: int) -> int:
        (handle,) = self._call("cuMemCreate", size_bytes, self._properties, 0)
        return int(handle)

    def map(self, address: int, size_bytes: int, handle: int) -> None:
        self._call("cuMemMap", address, size_bytes, 0, handle, 0)

    def allow(self, address: int, size_bytes: int) -> None:
        self._call("cuMemSetAccess", address, size_bytes, [self._access], 1)

    def unmap(self, address: int, size_bytes: int) -> None:
        self._call("cuMemUnmap", address, size_bytes)

    def release(self, handle: int) -> None:
        self._call("cuMemRelease", handle)

    def free(self, address: int, size_bytes: int) -> None:
        self._call("cuMemAddressFree", address, size_bytes)

    def _call(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        """What the driver returns after its status; raises DeviceFull, DeviceFailed."""
        status, *values = getattr(self._driver, name)(*arguments)
        codes = self._driver.CUresult
        if status == codes.CUDA_SUCCESS:
            return tuple(values)
        if status == codes.CUDA_ERROR_OUT_OF_MEMORY and name == "cuMemCreate":
            size_bytes = arguments[0]
            raise DeviceFull(f"the device has no {size_bytes} bytes free", missing_bytes=size_bytes)
        raise DeviceFailed(f"{name} failed with {codes(status).name}")
