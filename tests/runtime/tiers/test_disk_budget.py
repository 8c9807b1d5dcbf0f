"""The node's disk cache: its budget, evictions, damaged files, and changes by other pods."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from registry.domain.model import ModelName, ModelSpec
from runtime.errors import DiskFull, ModelInvalid, ModelTooLarge, StorageFailed
from runtime.storage.listing import MAX_LISTED, MAX_WEIGHT_BYTES, RemoteFile, weight_files
from runtime.storage.ranged_download import Bandwidth
from runtime.storage.storages import StorageOptions, Storages
from runtime.tiers.disk_budget import CacheLocks, DiskBudget
from runtime.tiers.disk_cache import DiskCache
from runtime.tiers.generation_folder import _crc32
from tests import servers

WEIGHTS = "model.safetensors"
SIZE = 1_000_000


def make_model(folder: Path, size: int = SIZE) -> ModelSpec:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / WEIGHTS).write_bytes(os.urandom(size))
    return ModelSpec(ModelName("default", folder.name), folder.as_uri())


def make_cache(folder: Path, budget_bytes: int = 0) -> DiskCache:
    return DiskCache(folder, Storages(), Bandwidth(None), budget_bytes=budget_bytes)


def fetch(cache: DiskCache, spec: ModelSpec) -> Path:
    cache.fetch_assets(spec)
    (path,) = cache.fetch_weights(spec)
    return path


def read_bytes_of_process() -> int:
    """Bytes that this process has read from files, as counted by the kernel."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A file system of `size` bytes at `folder`; skips the test where none can be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here; RLIMIT_FSIZE stands in elsewhere")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_evicts_the_least_recently_used_model_only(tmp_path: Path) -> None:
    specs = [make_model(tmp_path / "source" / name) for name in ("a", "b", "c", "d")]
    cache = make_cache(tmp_path / "cache", budget_bytes=int(3.5 * SIZE))
    for spec in specs[:3]:
        fetch(cache, spec)
    fetch(cache, specs[0])  # used again, so `b` is the oldest
    fetch(cache, specs[3])
    assert [cache.has_weights(spec.key) for spec in specs] == [True, False, True, True]


def test_keeps_a_model_that_need_not_go(tmp_path: Path) -> None:
    small, large = make_model(tmp_path / "s" / "small", 1000), make_model(tmp_path / "s" / "large")
    new = make_model(tmp_path / "s" / "new")
    cache = make_cache(tmp_path / "cache", budget_bytes=int(1.2 * SIZE))
    for spec in (small, large, new):
        fetch(cache, spec)
    assert [cache.has_weights(spec.key) for spec in (small, large, new)] == [True, False, True]


def test_never_evicts_a_model_in_use_by_any_process(tmp_path: Path) -> None:
    specs = [make_model(tmp_path / "source" / name) for name in ("a", "b", "c")]
    cache = make_cache(tmp_path / "cache", budget_bytes=int(2.5 * SIZE))
    first = fetch(cache, specs[0])
    fetch(cache, specs[1])
    code = (
        "import sys; from pathlib import Path; from runtime.tiers.disk_budget import CacheLocks;"
        "lock = CacheLocks(Path(sys.argv[1])).lock_for_use(sys.argv[2]);"
        "print('locked', flush=True); sys.stdin.read()"
    )
    user = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "cache"), first.parent.name],
        cwd=servers.REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert user.stdout is not None
    assert user.stdout.readline() == b"locked\n"
    fetch(cache, specs[2])
    assert [cache.has_weights(spec.key) for spec in specs] == [True, False, True]
    lock = cache.lock_for_use(specs[2].key)
    with pytest.raises(DiskFull, match="all but 0 bytes belong to models in use"):
        fetch(cache, specs[1])
    assert [cache.has_weights(spec.key) for spec in specs] == [True, False, True]
    servers.end_process(user)  # releases its lock
    fetch(cache, specs[1])
    assert [cache.has_weights(spec.key) for spec in specs] == [False, True, True]
    lock.release()


def test_refuses_a_model_above_the_budget(tmp_path: Path) -> None:
    small, large = make_model(tmp_path / "s" / "a", 1000), make_model(tmp_path / "s" / "b")
    cache = make_cache(tmp_path / "cache", budget_bytes=SIZE // 2)
    fetch(cache, small)
    told = rf"^[^@]*/b needs {SIZE} bytes \(1.00 MB\) .*{SIZE // 2} bytes.*--pod-disk"
    with pytest.raises(ModelTooLarge, match=told):
        fetch(cache, large)
    assert cache.has_weights(small.key)
    assert not list(cache.folder_of(large.key).rglob("*.part*"))


def test_full_disk_fails_the_load_only(tmp_path: Path) -> None:
    small, large = make_model(tmp_path / "s" / "a", 1000), make_model(tmp_path / "s" / "b")
    with small_disk(tmp_path / "disk", SIZE // 2) as disk:
        cache = make_cache(disk / "cache", budget_bytes=10 * SIZE)
        path = fetch(cache, small)
        full = rf"1000000 bytes .* of \S+/b can.* {disk}/cache, .* \d+ bytes .*free \(No space"
        with pytest.raises(DiskFull, match=full):
            fetch(cache, large)
        assert path.read_bytes() == (tmp_path / "s" / "a" / WEIGHTS).read_bytes()
        assert not list(disk.rglob("*.part*"))


def test_a_listing_without_disk_says_what_is_free(tmp_path: Path) -> None:
    spec = make_model(tmp_path / "source" / "a")
    with small_disk(tmp_path / "disk", 64 * 1024) as disk:
        cache = make_cache(disk / "cache", budget_bytes=10 * SIZE)
        cache.lock_for_use(spec.key).release()
        (disk / "other").write_bytes(bytes(shutil.disk_usage(disk).free))
        with pytest.raises(DiskFull, match=r"list of files of .* has 0 bytes free \(No space left"):
            fetch(cache, spec)


def test_default_budget_leaves_disk_space(tmp_path: Path) -> None:
    budget = DiskBudget(tmp_path, CacheLocks(tmp_path), 0)
    assert 0 < budget.budget_bytes < 0.9 * shutil.disk_usage(tmp_path).free


def test_default_budget_follows_the_free_space(tmp_path: Path) -> None:
    """A cache that is opened on a full disk uses the space that is freed later."""
    spec = make_model(tmp_path / "source" / "a")
    with small_disk(tmp_path / "disk", 4 * SIZE) as disk:
        (disk / "other").write_bytes(bytes(4 * SIZE - 64 * 1024))
        cache = make_cache(disk / "cache")
        full = rf"may take in {disk}/cache, .* has \d+ bytes .*free.*: free some space"
        with pytest.raises(DiskFull, match=full) as refused:
            fetch(cache, spec)
        assert "--pod-disk" not in str(refused.value)  # none was set
        (disk / "other").unlink()
        assert fetch(cache, spec).stat().st_size == SIZE


def flip(path: Path) -> None:
    with path.open("r+b") as target:
        target.seek(SIZE // 2)
        byte = target.read(1)
        target.seek(SIZE // 2)
        target.write(bytes([byte[0] ^ 1]))


def flip_and_hide(path: Path) -> None:
    """Flip a bit, and reset the time of the last write."""
    before = path.stat()
    flip(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(flip, id="flipped-bit"),
        pytest.param(flip_and_hide, id="flipped-bit-with-old-time"),
        pytest.param(lambda path: os.truncate(path, SIZE // 2), id="truncated"),
        pytest.param(lambda path: path.unlink(), id="file-deleted"),
        pytest.param(lambda path: (path.parent / ".listing.json").unlink(), id="listing-deleted"),
        pytest.param(lambda path: (path.parent / f".{WEIGHTS}.sum").unlink(), id="sum-deleted"),
        pytest.param(
            lambda path: (path.parent / f".{WEIGHTS}.sum").write_text("[1"), id="sum-damaged"
        ),
    ],
)
@pytest.mark.parametrize("is_restarted", [False, True])
def test_damaged_files_are_fetched_again(
    tmp_path: Path, damage: Callable[[Path], object], is_restarted: bool
) -> None:
    spec = make_model(tmp_path / "source" / "a")
    cache = make_cache(tmp_path / "cache")
    path = fetch(cache, spec)
    damage(path)
    cache = make_cache(tmp_path / "cache") if is_restarted else cache
    assert fetch(cache, spec).read_bytes() == (tmp_path / "source" / "a" / WEIGHTS).read_bytes()


def test_damaged_small_file_is_fetched_again(tmp_path: Path) -> None:
    spec = make_model(tmp_path / "source" / "a")
    cache = make_cache(tmp_path / "cache")
    path = fetch(cache, spec)
    (path.parent / "config.json").write_text("[]")
    cache.fetch_assets(spec)
    assert (path.parent / "config.json").read_text() == "{}"


def test_intact_files_are_not_read_after_a_restart(tmp_path: Path) -> None:
    spec = make_model(tmp_path / "source" / "a")
    fetch(make_cache(tmp_path / "cache"), spec)
    before = read_bytes_of_process()
    fetch(make_cache(tmp_path / "cache"), spec)
    assert read_bytes_of_process() - before < SIZE // 2


def test_files_of_an_earlier_boot_are_read_once(tmp_path: Path) -> None:
    spec = make_model(tmp_path / "source" / "a")
    path = fetch(make_cache(tmp_path / "cache"), spec)
    record = path.parent / f".{WEIGHTS}.sum"
    record.write_text(
        record.read_text().replace(
            Path("/proc/sys/kernel/random/boot_id").read_text().strip(), "another-boot"
        )
    )
    before = read_bytes_of_process()
    fetch(make_cache(tmp_path / "cache"), spec)
    middle = read_bytes_of_process()
    fetch(make_cache(tmp_path / "cache"), spec)
    assert middle - before > SIZE
    assert read_bytes_of_process() - middle < SIZE // 2


def test_partial_file_of_an_earlier_boot_is_discarded(tmp_path: Path) -> None:
    spec = make_model(tmp_path / "source" / "a")
    cache = make_cache(tmp_path / "cache")
    path = fetch(cache, spec)
    (path.parent / f"{WEIGHTS}.part").write_bytes(bytes(SIZE))
    journal = path.parent / f"{WEIGHTS}.part.spans"
    version = str((tmp_path / "source" / "a" / WEIGHTS).stat().st_mtime_ns)
    journal.write_text(f'[{SIZE}, "{version}", 8388608, "another-boot"]\n[0, {SIZE}, 0]\n')
    path.unlink()
    assert _crc32(fetch(cache, spec)) == _crc32(tmp_path / "source" / "a" / WEIGHTS)


def test_refresh_sees_changes_of_other_pods(tmp_path: Path) -> None:
    spec = make_model(tmp_path / "source" / "a")
    ours, others = make_cache(tmp_path / "cache"), make_cache(tmp_path / "cache")
    fetch(others, spec)
    assert ours.refresh() == {spec.key}
    assert ours.bytes_on_disk(spec.key) == SIZE
    others.discard(spec.key)
    assert ours.refresh() == {spec.key}
    assert ours.keys() == set()
    assert ours.refresh() == set()


def test_discard_keeps_a_model_in_use_by_another_pod(tmp_path: Path) -> None:
    spec = make_model(tmp_path / "source" / "a")
    ours, others = make_cache(tmp_path / "cache"), make_cache(tmp_path / "cache")
    fetch(ours, spec)
    with others.lock_for_use(spec.key):
        ours.discard(spec.key)
        assert others.has_weights(spec.key)
    ours.discard(spec.key)
    assert not others.has_weights(spec.key)


def test_deleted_cache_folder_is_created_again(tmp_path: Path) -> None:
    spec = make_model(tmp_path / "source" / "a")
    cache = make_cache(tmp_path / "cache")
    fetch(cache, spec)
    subprocess.run(["rm", "-r", str(tmp_path / "cache")], check=True)
    assert cache.refresh() == {spec.key}
    assert fetch(cache, spec).stat().st_size == SIZE


def test_refuses_a_folder_with_too_many_files(tmp_path: Path) -> None:
    spec = make_model(tmp_path / "source" / "a")
    for number in range(MAX_LISTED):
        (tmp_path / "source" / "a" / f"{number}").touch()
    with pytest.raises(ModelInvalid, match=f"more than {MAX_LISTED} files"):
        make_cache(tmp_path / "cache").fetch_assets(spec)


def test_refuses_weights_above_the_limit() -> None:
    files = [RemoteFile(WEIGHTS, MAX_WEIGHT_BYTES + 1)]
    with pytest.raises(ModelInvalid, match=f"at most .* {MAX_WEIGHT_BYTES} bytes"):
        weight_files(files, "s3://b/m", None)


def claim_cache(tmp_path: Path) -> DiskCache:
    options = StorageOptions(claim_mounts=tmp_path / "pvc")
    return DiskCache(tmp_path / "cache", Storages(options), Bandwidth(None))


def claim_spec(path: str) -> ModelSpec:
    return ModelSpec(ModelName("default", "m"), f"pvc://{path}")


def test_unmounted_claim_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="'claim' is not mounted at"):
        fetch(claim_cache(tmp_path), claim_spec("claim/models/a"))


@pytest.mark.parametrize("path", ["claim/../other/a", "claim/%2e%2e/other/a", "claim/link"])
def test_refuses_paths_out_of_the_claim(tmp_path: Path, path: str) -> None:
    make_model(tmp_path / "pvc" / "other" / "a")
    (tmp_path / "pvc" / "claim").mkdir()
    (tmp_path / "pvc" / "claim" / "link").symlink_to(tmp_path / "pvc" / "other" / "a")
    with pytest.raises(ModelInvalid, match="leads out of its volume"):
        fetch(claim_cache(tmp_path), claim_spec(path))


def test_refuses_links_out_of_the_claim(tmp_path: Path) -> None:
    make_model(tmp_path / "pvc" / "claim" / "a")
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (tmp_path / "pvc" / "claim" / "a" / "x.json").symlink_to(secret)
    with pytest.raises(ModelInvalid, match="leads out of its volume"):
        fetch(claim_cache(tmp_path), claim_spec("claim/a"))
