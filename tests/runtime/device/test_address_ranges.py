"""Fixed ranges of addresses: the contract of the driver, with CUDA's and with one in its place."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.device.address_ranges import AddressRanges
from runtime.device.cuda_virtual_memory import CudaVirtualMemory
from runtime.errors import DeviceFailed, DeviceFull

if TYPE_CHECKING:
    from collections.abc import Callable

pytest.importorskip("cuda.bindings.driver")

from cuda.bindings import driver as real

from tests.runtime.fake_cuda_driver import GRANULARITY_BYTES, FakeCudaDriver

gpu = pytest.mark.gpu
CODES = real.CUresult


def fake_memory() -> CudaVirtualMemory:
    return CudaVirtualMemory(0, FakeCudaDriver())


def cuda_memory() -> CudaVirtualMemory:
    torch.zeros(1, device="cuda")  # the context
    return CudaVirtualMemory(torch.cuda.current_device())


@pytest.fixture(
    params=[
        pytest.param(fake_memory, id="fake"),
        pytest.param(
            cuda_memory,
            id="cuda",
            marks=[gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")],
        ),
    ]
)
def memory(request: pytest.FixtureRequest) -> CudaVirtualMemory:
    make: Callable[[], CudaVirtualMemory] = request.param
    return make()


def test_names_and_types_are_those_of_the_driver() -> None:
    for name in dir(FakeCudaDriver):
        if name.lower().startswith("cu"):
            assert hasattr(real, name), name


def test_a_layout_comes_back_to_its_addresses(memory: CudaVirtualMemory) -> None:
    ranges = AddressRanges(memory)
    size_bytes = 3 * memory.granularity_bytes - 5
    first = ranges.map("bert", size_bytes)
    other = ranges.map("t5", size_bytes)
    assert ranges.mapped_bytes == 6 * memory.granularity_bytes
    ranges.unmap(first.address)
    again = ranges.map("bert", size_bytes)
    assert again.address == first.address != other.address
    ranges.unmap(again.address)
    ranges.unmap(other.address)
    assert ranges.mapped_bytes == 0
    ranges.close()


def test_two_of_one_layout_have_two_ranges(memory: CudaVirtualMemory) -> None:
    ranges = AddressRanges(memory)
    first, second = (ranges.map("bert", 1) for _ in range(2))
    assert first.address != second.address
    ranges.unmap(first.address)
    ranges.unmap(second.address)
    assert {ranges.map("bert", 1).address for _ in range(2)} == {first.address, second.address}
    for each in (first, second):
        ranges.unmap(each.address)
    ranges.close()


def test_breaking_a_rule_is_an_error(memory: CudaVirtualMemory) -> None:
    grain = memory.granularity_bytes
    address = memory.reserve(grain)
    handle = memory.create(grain)
    with pytest.raises(DeviceFailed, match="cuMemUnmap failed with CUDA_ERROR"):
        memory.unmap(address, grain)  # it is not mapped
    memory.map(address, grain, handle)
    with pytest.raises(DeviceFailed, match="cuMemMap failed with CUDA_ERROR"):
        memory.map(address, grain, handle)  # it is
    memory.allow(address, grain)
    memory.unmap(address, grain)
    memory.release(handle)
    memory.free(address, grain)


def test_memory_is_all_given_back() -> None:
    driver = FakeCudaDriver()
    ranges = AddressRanges(CudaVirtualMemory(0, driver))
    held = ranges.map("a", GRANULARITY_BYTES)
    assert driver.allowed == {held.address}
    ctypes.memset(held.address, 7, GRANULARITY_BYTES)
    ranges.unmap(held.address)
    assert driver.taken_bytes == 0
    assert list(driver.ranges) == [held.address]  # addresses stay
    ranges.close()
    assert driver.ranges == {}


def test_a_full_device_leaves_the_range(  # and the next load takes it
) -> None:
    driver = FakeCudaDriver(memory_bytes=2 * GRANULARITY_BYTES)
    ranges = AddressRanges(CudaVirtualMemory(0, driver))
    taken = ranges.map("a", 2 * GRANULARITY_BYTES)
    with pytest.raises(DeviceFull) as raised:
        ranges.map("b", GRANULARITY_BYTES)
    assert raised.value.missing_bytes == GRANULARITY_BYTES
    ranges.unmap(taken.address)
    assert ranges.map("b", GRANULARITY_BYTES).address != taken.address
    assert len(driver.ranges) == 2


@pytest.mark.parametrize("name", ["cuMemMap", "cuMemSetAccess"])
def test_a_failed_step_undoes_the_others(name: str) -> None:
    driver = FakeCudaDriver()
    ranges = AddressRanges(CudaVirtualMemory(0, driver))
    driver.fails[name] = CODES.CUDA_ERROR_LAUNCH_FAILED
    with pytest.raises(DeviceFailed, match=f"{name} failed with CUDA_ERROR_LAUNCH_FAILED"):
        ranges.map("a", 1)
    assert driver.taken_bytes == 0
    assert driver.mapped == {}
    driver.fails.clear()
    assert ranges.map("a", 1).address in driver.ranges
    assert len(driver.ranges) == 1


def test_the_least_recently_used_addresses_are_given_up() -> None:
    driver = FakeCudaDriver()
    ranges = AddressRanges(CudaVirtualMemory(0, driver), max_idle=2)
    held = [ranges.map(key, 1) for key in "abc"]
    for each in held:
        ranges.unmap(each.address)
    assert set(driver.ranges) == {each.address for each in held[1:]}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3)), max_size=30), st.data())
def test_any_order_of_loads_keeps_the_books(loads: list[tuple[str, int]], data: Any) -> None:
    driver = FakeCudaDriver(memory_bytes=8 * GRANULARITY_BYTES)
    ranges = AddressRanges(CudaVirtualMemory(0, driver), max_idle=3)
    held: list[Any] = []
    for key, pieces in loads:
        try:
            held.append(ranges.map(key, pieces * GRANULARITY_BYTES))
        except DeviceFull:
            assert driver.taken_bytes + pieces * GRANULARITY_BYTES > driver.memory_bytes
        if held and data.draw(st.booleans()):
            ranges.unmap(held.pop(data.draw(st.integers(0, len(held) - 1))).address)
        assert driver.taken_bytes == ranges.mapped_bytes == sum(each.size_bytes for each in held)
        assert set(driver.mapped) == driver.allowed == {each.address for each in held}
        assert len(driver.ranges) <= len(held) + 3
