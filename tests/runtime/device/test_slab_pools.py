"""Memory of unloaded models on a device that several pods share.

Torch's allocator keeps freed memory for its own process. With a pool for each slab it goes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from runtime.device.cuda import CudaEngine
from runtime.device.staged_memory import StagedMemory
from runtime.errors import DeviceFull
from runtime.weights.weight_source import DiskWeights
from tests.runtime.device.test_staged_memory import SMALL, weights_file
from tests.runtime.fake_engine import FakeDriver, FakeEngine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _pods(driver: FakeDriver, *, slab_pools: bool) -> list[StagedMemory]:
    engines = [FakeEngine(driver=driver, slab_pools=slab_pools) for _ in range(2)]
    return [StagedMemory(each, **SMALL) for each in engines]


@pytest.fixture
def source(tmp_path: Path) -> Callable[[], DiskWeights]:
    path = weights_file(tmp_path)
    return lambda: DiskWeights([path])


def test_freed_memory_is_there_for_another_pod(source: Callable[[], DiskWeights]) -> None:
    size = source().layout.size_bytes
    driver = FakeDriver(size + size // 2)  # one model
    first, second = _pods(driver, slab_pools=True)
    for _ in range(3):
        for pod in (first, second):
            pod.put(source()).release()
            pod._slab_ends.wait()
    assert driver.taken_bytes == 0
    first.close()
    second.close()


def test_without_pools_the_other_pod_is_told_that_the_device_is_full(
    source: Callable[[], DiskWeights],
) -> None:
    size = source().layout.size_bytes
    first, second = _pods(FakeDriver(size + size // 2), slab_pools=False)
    first.put(source()).release()
    with pytest.raises(DeviceFull):
        second.put(source())
    first.put(source()).release()  # its own cache
    first.close()
    second.close()


def test_a_load_waits_for_memory_that_is_being_given_back(
    source: Callable[[], DiskWeights],
) -> None:
    size = source().layout.size_bytes
    driver = FakeDriver(size + size // 2)
    pod, other = _pods(driver, slab_pools=True)
    for _ in range(20):
        pod.put(source()).release()  # the next `put` does not find it full
    pod.close()
    other.close()


def test_a_failed_load_gives_its_memory_back(
    source: Callable[[], DiskWeights], tmp_path: Path
) -> None:
    driver = FakeDriver(1 << 30)
    pod, other = _pods(driver, slab_pools=True)
    broken = source()
    with next(tmp_path.glob("*.safetensors")).open("r+b") as file:
        file.truncate(20_000)
    with pytest.raises(Exception, match="cut short"):
        pod.put(broken)
    pod.close()  # waits
    other.close()
    assert driver.taken_bytes == 0


def test_after_the_close_a_release_is_harmless(source: Callable[[], DiskWeights]) -> None:
    pod, other = _pods(FakeDriver(1 << 30), slab_pools=True)
    weights = pod.put(source())
    pod.close()
    other.close()
    weights.release()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_the_memory_of_a_slab_back_to_the_driver() -> None:
    engine = CudaEngine(slab_pools=True)
    before = torch.cuda.mem_get_info()[0]
    slab = engine.allocate(512 * 1024**2)
    end = engine.end_of(slab)
    assert end is not None
    assert torch.cuda.mem_get_info()[0] <= before - 500 * 1024**2
    del slab
    end()
    assert torch.cuda.mem_get_info()[0] >= before - 12 * 1024**2
