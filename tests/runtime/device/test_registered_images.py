"""Images of tier `host` that are registered with the driver: copied from where they lie."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from runtime.device.memory import CudaEngine
from runtime.device.staged_memory import RegisteredImages, StagedMemory
from runtime.tiers.host_image import HostImage
from runtime.tiers.host_tier import HostTier, PutOutcome, enter_host_tier
from tests.runtime.device.test_staged_memory import SMALL
from tests.runtime.fake_engine import FakeEngine
from tests.runtime.tiers.test_host_tier import FILES, IMAGE
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


def load(memory: StagedMemory, tier: HostTier, key: str, *, reads: bool = True) -> int:
    """The first byte of the model's only tensor."""
    image = opened(tier, key)
    if not reads:
        image.read_into = None  # type: ignore[assignment,method-assign]  # nothing may call it
    weights = memory.put(image)
    image.close()
    tensor = weights.tensors["w"]
    assert bool((tensor == tensor[0]).all())
    return int(tensor[0])


def register(engine: FakeEngine, memory: StagedMemory, tier: HostTier, key: str) -> None:
    before = engine.registrations
    image = opened(tier, key)
    memory.register(image)
    image.close()
    wait_until(lambda: engine.registrations > before, what=f"{key} is registered")


def test_bytes_are_copied_from_the_image_and_not_read(tier: HostTier, tmp_path: Path) -> None:
    engine = FakeEngine()
    memory = StagedMemory(engine, **SMALL)
    put_image(tier, tmp_path, A, 5)
    assert load(memory, tier, A) == 5  # through the ring
    register(engine, memory, tier, A)
    for _ in range(3):
        assert load(memory, tier, A, reads=False) == 5
    image = opened(tier, A)
    memory.register(image)
    image.close()
    assert engine.spoiled == []
    memory.close()
    assert (engine.registrations, engine.registered) == (1, [])


def test_images_leave_one_by_one_where_the_tier_has_no_room(tier: HostTier, tmp_path: Path) -> None:
    engine = FakeEngine()
    memory = StagedMemory(engine, **SMALL)
    for value, key in enumerate(KEYS):
        put_image(tier, tmp_path, key, value)
        register(engine, memory, tier, key)
    assert put_image(tier, tmp_path, "ns/d@1", 4) is PutOutcome.NO_ROOM
    tier.on_no_room = memory.images.drop_one
    assert load(memory, tier, A, reads=False) == 0  # `b` was used before
    assert put_image(tier, tmp_path, "ns/d@1", 4) is PutOutcome.DONE
    assert len(engine.registered) == 2
    assert tier.open(B, FILES) is None
    assert load(memory, tier, A, reads=False) == 0
    assert load(memory, tier, "ns/d@1") == 4
    memory.close()


def test_another_pod_of_the_node_gets_room(tier: HostTier, tmp_path: Path) -> None:
    engine = FakeEngine()
    memory = StagedMemory(engine, **SMALL)
    tier.on_wanted = memory.images.drop_later
    for key in KEYS:
        put_image(tier, tmp_path, key)
        register(engine, memory, tier, key)
    other = enter_host_tier(tmp_path / "host", 3 * IMAGE)
    tier.changes()
    assert len(engine.registered) == 3
    assert put_image(other, tmp_path, "ns/d@1", 4) is PutOutcome.NO_ROOM
    tier.changes()  # as each heartbeat does
    wait_until(lambda: len(engine.registered) == 2, what="one has left")
    assert put_image(other, tmp_path, "ns/d@1", 4) is PutOutcome.DONE
    other.close()
    memory.close()


def test_image_of_a_running_load_stays(tier: HostTier, tmp_path: Path) -> None:
    engine = FakeEngine()
    images = RegisteredImages(engine)
    put_image(tier, tmp_path, A)
    image = opened(tier, A)
    assert images.acquire(image) is None  # not yet: through the ring
    images.register_later(image)
    wait_until(lambda: engine.registered, what="it is registered")
    acquired = images.acquire(image)
    assert acquired is not None
    assert not images.drop_one()
    images.release(acquired[0])
    images.close()
    assert (engine.registrations, engine.registered) == (1, [])
    image.close()


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
    memory = StagedMemory(engine, **SMALL)
    put_image(tier, tmp_path, A, 9)
    image = opened(tier, A)
    memory.register(image)
    image.close()
    wait_until(lambda: "not registered, copied through buffers" in caplog.text, what="a warning")
    assert load(memory, tier, A) == 9
    memory.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_copies_from_a_registered_image(tier: HostTier, tmp_path: Path) -> None:
    memory = StagedMemory(CudaEngine(), **SMALL)
    put_image(tier, tmp_path, A, 5)
    image = opened(tier, A)
    memory.register(image)
    wait_until(lambda: memory.images.acquire(image), what="the driver has taken it")
    assert [load(memory, tier, A) for _ in range(3)] == [5, 5, 5]
    memory.images.release(image.image_name)
    image.close()
    memory.close()
