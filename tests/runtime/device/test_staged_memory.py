"""Staged device memory: the same tests for CUDA and for the fake engine.

Torch's allocator keeps freed memory for its own process. With a pool for each slab it goes back, to
other pods of a device, too.
"""

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from runtime.device.memory import CudaEngine
from runtime.device.staged_memory import CopyEngine, StagedMemory
from runtime.errors import DeviceFull, ModelInvalid
from runtime.storage.load_priority import LoadTicket
from runtime.weights.weight_source import DiskWeights
from tests.runtime.fake_engine import FakeDriver, FakeEngine
from tests.servers import wait_until

SMALL = {"buffers": 3, "buffer_bytes": 4096, "readers": 2, "max_copies": 3}
"""A small ring: every test's model uses each buffer several times."""


def engine_of(kind: str) -> CopyEngine:
    if kind == "fake":
        return FakeEngine()
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return CudaEngine()


def allocated(memory: StagedMemory) -> int:
    gc.collect()
    memory._slab_ends.wait()
    engine = memory._engine
    if isinstance(engine, FakeEngine):
        return engine.allocated_bytes
    total = torch.cuda.mem_get_info(engine.device)[1]
    return int(total) - engine.free_bytes()


@pytest.fixture(params=["fake", pytest.param("cuda", marks=pytest.mark.gpu)])
def engine(request: pytest.FixtureRequest) -> CopyEngine:
    return engine_of(request.param)


@pytest.fixture
def memory(engine: CopyEngine) -> Iterator[StagedMemory]:
    staged = StagedMemory(engine, **SMALL)
    yield staged
    staged.close()


def weights_file(folder: Path, seed: int = 0) -> Path:
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        "wide": torch.randn(70, 130, generator=generator),
        "half": torch.randn(333, generator=generator).to(torch.float16),
        "brain": torch.randn(33, 5, generator=generator).to(torch.bfloat16),
        "whole": torch.randint(-9, 9, (77,), generator=generator),
        "flags": torch.randint(0, 2, (13,), generator=generator).bool(),
        "one": torch.tensor(3.5, dtype=torch.float64),
        "none": torch.empty(0, 4),
    }
    path = folder / f"weights-{seed}.safetensors"
    save_file(tensors, path)
    return path


def assert_same(found: dict[str, torch.Tensor], path: Path) -> None:
    source = DiskWeights([path])
    expected = source.map_tensors()
    source.close()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        torch.testing.assert_close(found[name].cpu(), tensor, rtol=0, atol=0)


def test_tensors_equal_those_on_disk(
    memory: StagedMemory, engine: CopyEngine, tmp_path: Path
) -> None:
    path = weights_file(tmp_path)
    weights = memory.put(DiskWeights([path]))
    assert all(tensor.device == engine.device for tensor in weights.tensors.values())
    assert_same(weights.tensors, path)


def test_all_tensors_are_in_one_slab(memory: StagedMemory, tmp_path: Path) -> None:
    weights = memory.put(DiskWeights([weights_file(tmp_path)]))
    storages = {tensor.untyped_storage().data_ptr() for tensor in weights.tensors.values()}
    assert len(storages) == 1


@pytest.mark.slow
def test_releasing_the_tensors_frees_all_memory(
    memory: StagedMemory, engine: CopyEngine, tmp_path: Path
) -> None:
    before = allocated(memory)
    path = weights_file(tmp_path)
    for _ in range(50):
        weights = memory.put(DiskWeights([path]))
        assert allocated(memory) >= before + weights.size_bytes
        weights.release()
        del weights
        assert allocated(memory) == before


def test_concurrent_loads_are_independent(memory: StagedMemory, tmp_path: Path) -> None:
    paths = [weights_file(tmp_path, seed) for seed in range(6)]
    with ThreadPoolExecutor(len(paths)) as threads:
        loaded = list(threads.map(lambda path: memory.put(DiskWeights([path])), paths))
    for path, weights in zip(paths, loaded, strict=True):
        assert_same(weights.tensors, path)


class HeldWeights(DiskWeights):
    """Weights on a disk that blocks until `open` is set."""

    def __init__(self, path: Path) -> None:
        super().__init__([path])
        self.open = threading.Event()
        self.asked = 0

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self.asked += 1
        self.open.wait(60)
        super().read_into(offset, buffer)


class PacedWeights(DiskWeights):
    """Weights on a disk that reads a part for each permit."""

    def __init__(self, path: Path, permits: threading.Semaphore) -> None:
        super().__init__([path])
        self.permits = permits
        self.asked = 0

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self.asked += 1
        assert self.permits.acquire(timeout=60)
        super().read_into(offset, buffer)


def test_a_load_that_a_request_waits_for_does_not_wait_for_all_of_a_preload(tmp_path: Path) -> None:
    staged, permits = StagedMemory(FakeEngine(), **SMALL), threading.Semaphore(0)
    large = tmp_path / "large.safetensors"
    save_file({"a": torch.zeros(100 * SMALL["buffer_bytes"] // 4)}, large)
    source, small = PacedWeights(large, permits), weights_file(tmp_path)
    with ThreadPoolExecutor(2) as threads:
        preload = threads.submit(staged.put, source, LoadTicket(is_urgent=False))
        wait_until(lambda: source.asked > 0, what="the preload is read")
        urgent = threads.submit(staged.put, DiskWeights([small]), LoadTicket())
        for _ in range(50):
            permits.release()
            wait([urgent], timeout=0.05)
        is_here = urgent.done()  # after half of the preload
        permits.release(100)
        assert_same(urgent.result().tensors, small)
        preload.result()
    staged.close()
    assert is_here


@pytest.mark.slow
def test_close_during_a_load_ends_the_load(engine: CopyEngine, tmp_path: Path) -> None:
    staged, source = StagedMemory(engine, **SMALL), HeldWeights(weights_file(tmp_path))
    before = allocated(staged)

    def put() -> None:
        with suppress(CancelledError):
            staged.put(source)

    load = threading.Thread(target=put, daemon=True)
    load.start()
    wait_until(lambda: source.asked == SMALL["readers"], what="all readers wait for the disk")
    opening = threading.Timer(0.3, source.open.set)  # most likely after the rest was cancelled
    opening.start()
    staged.close()
    load.join(60)
    assert not load.is_alive()
    assert allocated(staged) == before


@pytest.mark.slow
def test_truncated_file_frees_all_memory(
    memory: StagedMemory, engine: CopyEngine, tmp_path: Path
) -> None:
    before = allocated(memory)
    path = weights_file(tmp_path)
    source = DiskWeights([path])
    with path.open("r+b") as file:
        file.truncate(20_000)
    with pytest.raises(ModelInvalid, match="cut short"):
        memory.put(source)
    assert allocated(memory) == before
    whole = weights_file(tmp_path, seed=1)
    assert_same(memory.put(DiskWeights([whole])).tensors, whole)  # the ring still works


def test_full_device_raises_and_frees_all_memory(tmp_path: Path) -> None:
    engine = FakeEngine(memory_bytes=50_000)
    memory = StagedMemory(engine, **SMALL)
    path = weights_file(tmp_path)
    first = memory.put(DiskWeights([path]))
    with pytest.raises(DeviceFull, match="bytes free"):
        memory.put(DiskWeights([path]))
    assert engine.allocated_bytes == first.size_bytes
    memory.close()


def test_buffer_is_reused_only_after_its_copy(tmp_path: Path) -> None:
    engine = FakeEngine()
    memory = StagedMemory(engine, **SMALL)
    path = weights_file(tmp_path)
    engine.may_copy.clear()
    with ThreadPoolExecutor(1) as threads:
        loading = threads.submit(memory.put, DiskWeights([path]))
        wait_until(lambda: engine._asked == SMALL["buffers"], what="the ring is in flight")
        assert not loading.done()
        engine.may_copy.set()
        assert_same(loading.result().tensors, path)
    assert engine.spoiled == []
    assert engine.done_order == sorted(engine.done_order)
    memory.close()


def test_few_copies_are_under_way_at_once(tmp_path: Path) -> None:
    """Inputs of inferences wait behind them."""
    engine = FakeEngine()
    memory = StagedMemory(engine, buffers=8, buffer_bytes=4096, readers=4, max_copies=2)
    path = weights_file(tmp_path)
    engine.may_copy.clear()
    with ThreadPoolExecutor(1) as threads:
        loading = threads.submit(memory.put, DiskWeights([path]))
        try:
            wait_until(
                lambda: (
                    engine._asked > 2 or (memory._ring._free.qsize() <= 4 and engine._asked == 2)
                ),
                what="four readers have a buffer",
            )
            assert engine._asked == 2
        finally:
            engine.may_copy.set()  # or a failure would hang
        assert_same(loading.result().tensors, path)
    memory.close()


def test_fake_engine_detects_early_reuse_of_a_buffer() -> None:
    engine = FakeEngine()
    slab, buffer = engine.allocate(8), engine.allocate_pinned(8)
    engine.may_copy.clear()
    copy = engine.copy(slab, buffer)
    buffer.fill_(1)
    engine.may_copy.set()
    copy.synchronize()
    assert engine.spoiled == [0]


def test_ring_is_allocated_once(tmp_path: Path) -> None:
    engine = FakeEngine()
    memory = StagedMemory(engine, **SMALL)
    path = weights_file(tmp_path)
    for _ in range(3):
        memory.put(DiskWeights([path]))
    assert engine.pinned_bytes == SMALL["buffers"] * SMALL["buffer_bytes"]
    memory.close()


def _pods(driver: FakeDriver) -> list[StagedMemory]:
    engines = [FakeEngine(driver=driver) for _ in range(2)]
    return [StagedMemory(each, **SMALL) for each in engines]


@pytest.fixture
def source(tmp_path: Path) -> Callable[[], DiskWeights]:
    path = weights_file(tmp_path)
    return lambda: DiskWeights([path])


def test_freed_memory_is_there_for_another_pod(source: Callable[[], DiskWeights]) -> None:
    size = source().layout.size_bytes
    driver = FakeDriver(size + size // 2)  # one model
    first, second = _pods(driver)
    for _ in range(3):
        for pod in (first, second):
            pod.put(source()).release()
            pod._slab_ends.wait()
    assert driver.taken_bytes == 0
    first.close()
    second.close()


def test_a_load_waits_for_memory_that_is_being_given_back(
    source: Callable[[], DiskWeights],
) -> None:
    size = source().layout.size_bytes
    driver = FakeDriver(size + size // 2)
    pod, other = _pods(driver)
    for _ in range(20):
        pod.put(source()).release()  # the next `put` does not find it full
    pod.close()
    other.close()


def test_a_failed_load_gives_its_memory_back(
    source: Callable[[], DiskWeights], tmp_path: Path
) -> None:
    driver = FakeDriver(1 << 30)
    pod, other = _pods(driver)
    broken = source()
    with next(tmp_path.glob("*.safetensors")).open("r+b") as file:
        file.truncate(20_000)
    with pytest.raises(Exception, match="cut short"):
        pod.put(broken)
    pod.close()  # waits
    other.close()
    assert driver.taken_bytes == 0


def test_a_failed_release_fails_no_other_load(
    source: Callable[[], DiskWeights], caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(FakeEngine):
        def end_of(self, slab: torch.Tensor) -> Callable[[], None] | None:
            def fail() -> None:
                raise RuntimeError("the driver failed")

            return fail

    memory = StagedMemory(Failing(), **SMALL)
    memory.put(source()).release()
    memory.put(source()).release()
    assert "memory not given back" in caplog.text
    memory.close()


def test_after_the_close_a_release_is_harmless(source: Callable[[], DiskWeights]) -> None:
    pod, other = _pods(FakeDriver(1 << 30))
    weights = pod.put(source())
    pod.close()
    other.close()
    weights.release()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_the_memory_of_a_slab_back_to_the_driver() -> None:
    engine = CudaEngine()
    before = torch.cuda.mem_get_info()[0]
    slab = engine.allocate(512 * 1024**2)
    end = engine.end_of(slab)
    assert torch.cuda.mem_get_info()[0] <= before - 500 * 1024**2
    del slab
    end()
    assert torch.cuda.mem_get_info()[0] >= before - 12 * 1024**2
