"""Tier host: shared between processes, within its budget, only complete and intact images."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from runtime.errors import ModelInvalid
from runtime.storage.listing import RemoteFile
from runtime.tiers import host_image
from runtime.tiers.host_image import HostImage, write_image
from runtime.tiers.host_tier import HostTier, PutOutcome, enter_host_tier, writer_count
from runtime.weights.weight_source import DiskWeights, map_file, touch_pages
from tests.runtime.weights.test_weight_source import resident_bytes, skip_where_pages_stay
from tests.servers import REPOSITORY, wait_until

KIB = 1024
SIZE = 64 * KIB
"""Bytes of each model's only tensor; its image has a page of header, too."""
IMAGE = SIZE + 4096
FILES = (RemoteFile("model.safetensors", SIZE, "v1"),)


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[HostTier]:
    entered = enter_host_tier(tmp_path / "host", 3 * IMAGE)
    yield entered
    entered.close()


def weights(folder: Path, value: int, size: int = SIZE) -> DiskWeights:
    path = folder / f"{value}.safetensors"
    save_file({"w": torch.full((size,), value, dtype=torch.uint8)}, path)
    return DiskWeights([path])


def put(tier: HostTier, folder: Path, key: str, value: int = 1) -> PutOutcome:
    source = weights(folder, value)
    try:
        return tier.put(key, FILES, source)
    finally:
        source.close()


def mapped(tier: HostTier, key: str) -> torch.Tensor | None:
    """The model's tensor, which keeps the image locked."""
    image = tier.open(key, FILES)
    if image is None:
        return None
    tensor = image.map_tensors()["w"]
    image.close()
    return tensor


def image_path(tier_folder: Path) -> Path:
    (path,) = tier_folder.glob("*.slab")
    return path


@contextmanager
def other_process(code: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has printed its first line; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def mapping_code(folder: Path, key: str) -> str:
    return f"""
from pathlib import Path
from runtime.tiers.host_tier import enter_host_tier
from tests.runtime.tiers.test_host_tier import FILES, IMAGE, mapped
tier = enter_host_tier(Path({str(folder)!r}), 3 * IMAGE)
tensor = mapped(tier, {key!r})
assert tensor is not None
print("ready", flush=True)
input()
"""


def test_image_has_the_weights(tier: HostTier, tmp_path: Path) -> None:
    assert put(tier, tmp_path, "ns/a@1", 7) is PutOutcome.DONE
    tensor = mapped(tier, "ns/a@1")
    assert tensor is not None
    assert tensor.eq(7).all()
    assert tier.keys() == {"ns/a@1"}
    assert tier.bytes_of("ns/a@1") == tier.used_bytes() == IMAGE


def test_second_put_keeps_the_image(tier: HostTier, tmp_path: Path) -> None:
    put(tier, tmp_path, "ns/a@1", 7)
    assert put(tier, tmp_path, "ns/a@1", 8) is PutOutcome.THERE
    tensor = mapped(tier, "ns/a@1")
    assert tensor is not None
    assert tensor.eq(7).all()


def test_image_of_other_files_is_replaced(tier: HostTier, tmp_path: Path) -> None:
    put(tier, tmp_path, "ns/a@1")
    changed = (RemoteFile("model.safetensors", SIZE, "v2"),)
    assert tier.open("ns/a@1", changed) is None
    source = weights(tmp_path, 2)
    assert tier.put("ns/a@1", changed, source) is PutOutcome.DONE
    source.close()
    assert tier.used_bytes() == IMAGE
    image = tier.open("ns/a@1", changed)
    assert image is not None
    assert image.map_tensors()["w"].eq(2).all()
    image.close()


def test_evicts_the_least_recently_used_image(tier: HostTier, tmp_path: Path) -> None:
    for value, key in enumerate(("ns/a@1", "ns/b@1", "ns/c@1")):
        put(tier, tmp_path, key, value)
    assert mapped(tier, "ns/a@1") is not None  # used and unmapped
    assert put(tier, tmp_path, "ns/d@1", 9) is PutOutcome.DONE
    assert tier.keys() == {"ns/a@1", "ns/c@1", "ns/d@1"}


def test_mapped_image_is_never_evicted(tier: HostTier, tmp_path: Path) -> None:
    for value, key in enumerate(("ns/a@1", "ns/b@1", "ns/c@1")):
        put(tier, tmp_path, key, value)
    kept = [mapped(tier, key) for key in ("ns/a@1", "ns/b@1", "ns/c@1")]
    assert put(tier, tmp_path, "ns/d@1", 9) is PutOutcome.NO_ROOM
    del kept[1]
    assert put(tier, tmp_path, "ns/d@1", 9) is PutOutcome.DONE
    assert tier.keys() == {"ns/a@1", "ns/c@1", "ns/d@1"}


def test_image_above_the_budget_evicts_none(tier: HostTier, tmp_path: Path) -> None:
    put(tier, tmp_path, "ns/a@1")
    large = weights(tmp_path, 5, size=4 * SIZE)
    assert tier.put("ns/large@1", FILES, large) is PutOutcome.NO_ROOM
    large.close()
    assert tier.keys() == {"ns/a@1"}


@pytest.mark.slow
def test_processes_map_the_same_memory(tier: HostTier, tmp_path: Path) -> None:
    folder = tmp_path / "host"
    put(tier, tmp_path, "ns/a@1")
    with other_process(mapping_code(folder, "ns/a@1")) as process:
        inode = image_path(folder).stat().st_ino
        assert f" {inode} " in Path(f"/proc/{process.pid}/maps").read_text()
        tier.discard("ns/a@1")
        assert tier.keys() == {"ns/a@1"}
        process.kill()  # releases its locks
        process.wait()
    tier.discard("ns/a@1")
    assert tier.keys() == set()


def test_sees_images_of_other_pods(tier: HostTier, tmp_path: Path) -> None:
    other = enter_host_tier(tmp_path / "host", 3 * IMAGE)
    put(other, tmp_path, "ns/a@1", 4)
    assert tier.changes() == {"ns/a@1"}
    assert tier.changes() == set()
    tensor = mapped(tier, "ns/a@1")
    assert tensor is not None
    assert tensor.eq(4).all()
    other.close()


@pytest.mark.parametrize("writers", [1, 3])
def test_writers_together_write_the_whole_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writers: int
) -> None:
    monkeypatch.setattr(host_image, "CHUNK_BYTES", 1000)
    path = tmp_path / "w.safetensors"
    save_file({"w": torch.arange(9000, dtype=torch.int32)}, path)
    source = DiskWeights([path])
    with (tmp_path / "image").open("w+b") as file:
        assert write_image(file.fileno(), source, writers=writers)
        image = HostImage(os.dup(file.fileno()), "image")
        assert torch.equal(image.map_tensors()["w"], torch.arange(9000, dtype=torch.int32))
        image.close()
    source.close()


class WatchedWeights(DiskWeights):
    """Calls a function before each chunk is read."""

    def __init__(self, path: Path, before_chunk: Callable[[], object]) -> None:
        super().__init__([path])
        self.chunks = 0
        self._before_chunk = before_chunk

    def read_into(self, offset: int, target: memoryview) -> None:
        self.chunks += 1
        self._before_chunk()
        super().read_into(offset, target)


def test_a_model_is_copied_by_several_threads_at_once(
    tier: HostTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two waits in its first chunk for the other."""
    monkeypatch.setattr(host_image, "CHUNK_BYTES", SIZE // 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    weights(tmp_path, 1).close()
    source = WatchedWeights(tmp_path / "1.safetensors", threading.Barrier(2, timeout=60).wait)
    assert tier.put("ns/a@1", FILES, source) is PutOutcome.DONE
    assert source.chunks == 2
    source.close()


def test_a_copy_stops_before_its_next_chunk(
    tier: HostTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_image, "CHUNK_BYTES", 1000)
    weights(tmp_path, 1).close()
    stopped = threading.Event()
    source = WatchedWeights(tmp_path / "1.safetensors", stopped.set)
    assert tier.put("ns/a@1", FILES, source, stopped.is_set) is PutOutcome.STOPPED
    assert source.chunks <= writer_count(len(os.sched_getaffinity(0)))
    source.close()
    assert tier.keys() == set()
    assert list((tmp_path / "host").glob("ns*")) == []


def test_a_copied_model_is_in_memory_once(tier: HostTier, tmp_path: Path) -> None:
    weights(tmp_path, 1).close()
    path = tmp_path / "1.safetensors"
    skip_where_pages_stay(path)
    path.read_bytes()
    assert resident_bytes(path)
    assert tier.put_files("ns/a@1", FILES, [path]) is PutOutcome.DONE
    assert resident_bytes(path) == 0


def test_error_of_one_writer_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_image, "CHUNK_BYTES", 1000)
    source = weights(tmp_path, 1)
    os.truncate(tmp_path / "1.safetensors", SIZE // 2)
    with (tmp_path / "image").open("w+b") as file, pytest.raises(ModelInvalid, match="cut short"):
        write_image(file.fileno(), source, writers=3)
    source.close()


def test_copies_take_a_quarter_of_the_cores() -> None:
    assert [writer_count(cores) for cores in (1, 2, 8, 64)] == [1, 1, 2, 4]


STALLED_COPY = """
from pathlib import Path
from tests.runtime.tiers.test_host_tier import FILES, IMAGE, weights
from runtime.tiers.host_tier import enter_host_tier

class Stalled:
    def __init__(self, source):
        self.layout = source.layout
    def read_into(self, offset, target):
        print("ready", flush=True)
        input()

tier = enter_host_tier(Path({folder!r}), 3 * IMAGE)
tier.put("ns/a@1", FILES, Stalled(weights(Path({work!r}), 1)))
"""


@pytest.mark.slow
def test_one_pod_copies_and_a_killed_copy_is_deleted(tier: HostTier, tmp_path: Path) -> None:
    folder, work = tmp_path / "host", tmp_path / "work"
    work.mkdir()
    code = STALLED_COPY.format(folder=str(folder), work=str(work))
    with other_process(code) as process:
        assert [path.suffix for path in folder.glob("ns*")] == [".part"]
        assert mapped(tier, "ns/a@1") is None
        assert put(tier, tmp_path, "ns/a@1") is PutOutcome.UNDER_WAY
        process.kill()
        process.wait()
    assert put(tier, tmp_path, "ns/a@1", 3) is PutOutcome.DONE
    assert list(folder.glob("*.part")) == []
    tensor = mapped(tier, "ns/a@1")
    assert tensor is not None
    assert tensor.eq(3).all()


def test_start_deletes_copies_of_killed_pods(tmp_path: Path) -> None:
    folder = tmp_path / "host"
    folder.mkdir(mode=0o700)
    (folder / "ns~a@1.0123456789abcdef.slab.part").write_bytes(b"x" * 1000)
    tier = enter_host_tier(folder, IMAGE)
    assert list(folder.glob("*.part")) == []
    tier.close()


def cut_to(size: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.chmod(0o600)
        os.truncate(path, size if size >= 0 else path.stat().st_size + size)

    return damage


def overwritten(offset: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.chmod(0o600)
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(b"\xff\xff\xff\xff")

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(cut_to(-1), id="one-byte-less"),
        pytest.param(cut_to(0), id="empty"),
        pytest.param(cut_to(20), id="half-a-header"),
        pytest.param(overwritten(0), id="magic"),
        pytest.param(overwritten(8), id="length"),
        pytest.param(overwritten(20), id="checksum"),
        pytest.param(overwritten(60), id="description"),
    ],
)
def test_damaged_image_is_deleted(
    tier: HostTier, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    put(tier, tmp_path, "ns/a@1")
    damage(image_path(tmp_path / "host"))
    assert tier.open("ns/a@1", FILES) is None
    assert tier.keys() == set()
    assert put(tier, tmp_path, "ns/a@1") is PutOutcome.DONE


def test_image_cut_while_open_raises(tier: HostTier, tmp_path: Path) -> None:
    put(tier, tmp_path, "ns/a@1")
    image = tier.open("ns/a@1", FILES)
    assert image is not None
    cut_to(8192)(image_path(tmp_path / "host"))
    with pytest.raises(ModelInvalid, match="cut short"):
        image.map_tensors()
    with pytest.raises(ModelInvalid, match="cut short"):
        image.read_into(0, memoryview(bytearray(SIZE)))
    image.close()


def test_missing_pages_raise_instead_of_a_signal(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * SIZE)
    descriptor = os.open(path, os.O_RDONLY)
    region = map_file(descriptor, SIZE, name="file")
    os.truncate(path, 4096)
    with pytest.raises(ModelInvalid, match="mapped whole"):
        touch_pages(region, name="file")
    os.close(descriptor)


def test_images_are_read_only(tier: HostTier, tmp_path: Path) -> None:
    put(tier, tmp_path, "ns/a@1")
    path = image_path(tmp_path / "host")
    assert path.stat().st_mode & 0o777 == 0o400
    tensor = mapped(tier, "ns/a@1")
    assert tensor is not None
    tensor.fill_(9)  # changes a private copy of the page
    again = mapped(tier, "ns/a@1")
    assert again is not None
    assert again.eq(1).all()


@pytest.fixture
def small_memory(tmp_path: Path) -> Iterator[Path]:
    """A memory file system of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(["mount", *options], check=False).returncode:
        pytest.skip("a file system can be mounted by root only")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_full_memory_fails_only_the_copy(small_memory: Path, tmp_path: Path) -> None:
    tier = enter_host_tier(small_memory, 200 * KIB)
    (small_memory / "another-file").write_bytes(b"x" * 200 * KIB)
    assert put(tier, tmp_path, "ns/a@1") is PutOutcome.FAILED
    assert list(small_memory.glob("ns*")) == []
    (small_memory / "another-file").unlink()
    assert put(tier, tmp_path, "ns/a@1") is PutOutcome.DONE
    tier.close()


def test_small_file_system_switches_the_tier_off(
    small_memory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier = enter_host_tier(small_memory / "node", 1024 * KIB)
    assert not tier.is_on
    (record,) = caplog.records
    assert record.message == "host tier is off"
    assert "lower host-bytes" in str(vars(record)["error"])
    assert put(tier, tmp_path, "ns/a@1") is PutOutcome.OFF
    assert tier.open("ns/a@1", FILES) is None
    assert tier.changes() == tier.keys() == set()
    tier.discard("ns/a@1")
    tier.close()


def test_unusable_folder_switches_the_tier_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert not enter_host_tier(tmp_path / "file" / "host", IMAGE).is_on
    assert os.strerror(errno.ENOTDIR) in str(vars(caplog.records[0])["error"])


def test_refuses_a_folder_that_others_can_write_to(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    assert not enter_host_tier(folder, IMAGE).is_on


def test_without_a_budget_no_folder_is_created(tmp_path: Path) -> None:
    assert not enter_host_tier(tmp_path / "host", 0).is_on
    assert not (tmp_path / "host").exists()


def test_last_pod_clears_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "host"
    first, second = (enter_host_tier(folder, IMAGE) for _ in range(2))
    put(first, tmp_path, "ns/a@1")
    first.close()
    assert second.open("ns/a@1", FILES) is not None
    second.close()
    wait_until(lambda: not folder.exists())


def test_failed_copy_leaves_nothing(tier: HostTier, tmp_path: Path) -> None:
    source = weights(tmp_path, 1)
    os.truncate(tmp_path / "1.safetensors", 1000)
    with pytest.raises(ModelInvalid):
        source.read_into(0, memoryview(bytearray(SIZE)))
    assert tier.put("ns/a@1", FILES, source) is PutOutcome.FAILED
    assert list((tmp_path / "host").glob("ns*")) == []
    source.close()
