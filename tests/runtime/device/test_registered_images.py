"""Images of tier `host` that are registered with the driver: copied from where they lie."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from runtime.device.memory import CudaEngine
from runtime.device.staged_memory import RegisteredImages, StagedMemory
from runtime.tiers.host_image import HostImage
from runtime.tiers.host_tier import HostTier, PutOutcome, enter_host_tier
from tests.runtime.device.test_staged_memory import SMALL, assert_same, weights_file
from tests.runtime.fake_engine import FakeEngine
from tests.runtime.tiers.test_host_tier import FILES, IMAGE, SIZE
from tests.runtime.tiers.test_host_tier import put as put_image
from tests.servers import wait_until

KEYS = A, B, _ = ("ns/a@1", "ns/b@1", "ns/c@1")


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[HostTier]:
    entered = enter_host_tier(tmp_path / "host", 3 * IMAGE)
    yield entered
    entered.close()


def opened(tier: HostTier, key: str) -> HostImage:
    image = tier.open(key, FILES)
    assert image is not None
    return image


def load(memory: StagedMemory, tier: HostTier, key: str) -> int:
    """The first byte of the model's only tensor."""
    image = opened(tier, key)
    weights = memory.put(image)
    image.close()
    tensor = weights.tensors["w"]
    assert bool((tensor == tensor[0]).all())
    return int(tensor[0])


def load_and_register(engine: FakeEngine, memory: StagedMemory, tier: HostTier, key: str) -> int:
    """As `load`, and waits until the image is registered."""
    before = engine.registrations
    value = load(memory, tier, key)
    wait_until(lambda: engine.registrations > before, what=f"{key} is registered")
    return value


def test_bytes_are_copied_from_the_image_and_not_read(tier: HostTier, tmp_path: Path) -> None:
    engine = FakeEngine()
    memory = StagedMemory(engine, **SMALL, registered_bytes=2 * SIZE)
    put_image(tier, tmp_path, A, 5)
    assert load_and_register(engine, memory, tier, A) == 5
    image = opened(tier, A)
    image.read_into = None  # type: ignore[assignment,method-assign]  # nothing may call it
    assert int(memory.put(image).tensors["w"][-1]) == 5
    image.close()
    for _ in range(3):
        assert load(memory, tier, A) == 5
    assert engine.registrations == 1
    assert engine.spoiled == []
    memory.close()
    assert engine.registered == []


def test_least_recently_used_images_make_room(tier: HostTier, tmp_path: Path) -> None:
    engine = FakeEngine()
    memory = StagedMemory(engine, **SMALL, registered_bytes=2 * SIZE)
    for value, key in enumerate(KEYS):
        put_image(tier, tmp_path, key, value)
    assert [load_and_register(engine, memory, tier, each) for each in (A, B)] == [0, 1]
    assert load(memory, tier, A) == 0  # from where it lies
    assert load_and_register(engine, memory, tier, KEYS[2]) == 2
    wait_until(lambda: len(engine.registered) == 2, what="one has left")
    assert load(memory, tier, A) == 0
    assert load_and_register(engine, memory, tier, B) == 1  # `b` had to leave
    memory.close()


def test_registered_images_do_not_keep_others_out_of_the_tier(
    tier: HostTier, tmp_path: Path
) -> None:
    engine = FakeEngine()
    memory = StagedMemory(engine, **SMALL, registered_bytes=3 * SIZE)
    for value, key in enumerate(KEYS):
        put_image(tier, tmp_path, key, value)
        load_and_register(engine, memory, tier, key)
    assert put_image(tier, tmp_path, "ns/d@1", 4) is PutOutcome.NO_ROOM
    tier.on_no_room = memory.drop_registered
    assert put_image(tier, tmp_path, "ns/d@1", 4) is PutOutcome.DONE
    assert load(memory, tier, "ns/d@1") == 4
    memory.close()


def test_image_of_a_running_load_stays(tier: HostTier, tmp_path: Path) -> None:
    engine = FakeEngine()
    images = RegisteredImages(engine, SIZE)
    for key in (A, B):
        put_image(tier, tmp_path, key)
    image, other = opened(tier, A), opened(tier, B)
    assert images.acquire(image) is None  # not yet: through the ring
    images.register_later(image)
    wait_until(lambda: engine.registered, what="it is registered")
    acquired = images.acquire(image)
    assert acquired is not None
    images.register_later(other)  # no room
    assert not images.drop_unused()
    images.release(acquired[0])
    images.close()
    assert (engine.registrations, engine.registered) == (1, [])
    image.close()
    other.close()


def test_what_is_registered_is_the_memory_of_the_file_itself(
    tier: HostTier, tmp_path: Path
) -> None:
    """Of a private mapping a driver would pin copies, for as long as it is registered."""
    put_image(tier, tmp_path, A, 5)
    image = opened(tier, A)
    region = image.map_shared()
    assert int(region[0]) == int(region[-1]) == 5
    maps = Path("/proc/self/maps").read_text().splitlines()
    (mapping,) = [each for each in maps if image.image_name in each]
    assert mapping.split()[1] == "r--s"
    image.close()


def test_where_the_driver_refuses_bytes_go_through_the_ring(
    tier: HostTier, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = FakeEngine()
    engine.refuses_to_register = True
    memory = StagedMemory(engine, **SMALL, registered_bytes=SIZE)
    put_image(tier, tmp_path, A, 9)
    assert load(memory, tier, A) == 9
    wait_until(lambda: "not registered, copied through buffers" in caplog.text, what="a warning")
    assert load(memory, tier, A) == 9
    memory.close()


def test_files_on_disk_and_images_without_a_budget_use_the_ring(
    tier: HostTier, tmp_path: Path
) -> None:
    from runtime.weights.weight_source import DiskWeights

    engine = FakeEngine()
    memory = StagedMemory(engine, **SMALL, registered_bytes=1 << 30)
    path = weights_file(tmp_path)
    assert_same(memory.put(DiskWeights([path])).tensors, path)
    memory.close()
    memory = StagedMemory(engine, **SMALL)
    put_image(tier, tmp_path, A, 3)
    assert load(memory, tier, A) == 3
    assert engine.registrations == 0
    memory.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_copies_from_a_registered_image(tier: HostTier, tmp_path: Path) -> None:
    memory = StagedMemory(CudaEngine(), **SMALL, registered_bytes=2 * SIZE)
    put_image(tier, tmp_path, A, 5)
    assert load(memory, tier, A) == 5
    image = opened(tier, A)
    wait_until(lambda: memory._images.acquire(image), what="the driver has taken it")
    assert [load(memory, tier, A) for _ in range(3)] == [5, 5, 5]
    memory._images.release(image.image_name)
    image.close()
    memory.close()
