"""What lies around a pod is not as it should be: files of others, libraries that panic."""

import asyncio
import json
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from runtime.loading.processors import Processors
from runtime.storage.ranged_download import Bandwidth
from runtime.storage.storages import Storages
from runtime.tiers.disk_cache import DiskCache
from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import predict
from tests.runtime.local_pod import spec_of


def remove_folder(folder: Path) -> None:
    """Delete a folder that a running pod may write into meanwhile."""
    shutil.rmtree(folder.rename(folder.with_name(f"deleted-{folder.name}")))


def has_withdrawn(cluster: Cluster, pod: servers.Pod, models: Path) -> bool:
    """Whether the pod brings a model, and takes it away again when it is withdrawn."""
    spec = cluster.declare("probe", models / "tiny-bert")
    assert predict(pod.url, "probe", "x").status_code == 200
    cluster.withdraw("probe")
    servers.wait_until(lambda: cluster.tiers(spec) == {})
    return pod.is_ready()


def test_files_of_others_in_its_folders_are_left_alone(
    cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    cache, host = tmp_path / "cache", tmp_path / "host"
    host.mkdir(mode=0o700)
    (host / "mine.slab").write_bytes(b"x")
    (cache / "lost+found").mkdir(parents=True)
    (cache / "a~b").mkdir()
    (cache / "notes.txt").write_text("mine")
    pod = cluster.pod(cache_dir=str(cache), host_dir=str(host), disk_bytes=2_000_000)
    assert has_withdrawn(cluster, pod, models)
    names = sorted(path.name for path in cache.iterdir() if path.name[0] != ".")
    assert names == ["a~b", "lost+found", "notes.txt"]
    assert (host / "mine.slab").exists()


def test_host_folder_that_is_deleted_turns_no_pod_away(
    cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    pod = cluster.pod(host_dir=str(tmp_path / "host"))
    remove_folder(tmp_path / "host")
    assert has_withdrawn(cluster, pod, models)


def test_cache_folder_that_cannot_be_used_fails_loads_alone(
    cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    cluster.declare("kept", models / "tiny-bert")
    spec = cluster.declare("gone", models / "tiny-bert", task="text-embedding")
    cluster.declare("new", models / "tiny-t5")
    cache = tmp_path / "cache"
    pod = cluster.pod(cache_dir=str(cache))
    for name in ("kept", "gone"):
        assert predict(pod.url, name, "x").status_code == 200
    remove_folder(cache)
    cache.write_text("a file in place of the folder")
    answer = predict(pod.url, "new", "x")
    assert answer.status_code == 503
    assert str(cache) in answer.json()["error"]
    cluster.withdraw("gone")

    def is_removed() -> bool:
        """The files could not be deleted, or an earlier refresh of the cache found none."""
        tier = cluster.tiers(spec).get("pod-a")
        return tier != "device" and ("files not deleted" in pod.log or tier == "remote")

    servers.wait_until(is_removed)
    assert predict(pod.url, "kept", "x").headers["x-pilotlight-start"] == "warm"


def test_tokenizer_whose_library_panics_fails_its_load_alone(
    cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    folder = servers.copy_model(models / "tiny-bert", tmp_path / "model")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    cluster.declare("odd", folder)
    cluster.declare("good", models / "tiny-bert")
    pod = cluster.pod()
    answer = predict(pod.url, "odd", "x")
    assert answer.status_code == 422
    assert "tokenizer cannot be used" in answer.json()["error"]
    assert predict(pod.url, "good", "x").status_code == 200


class BesideAnotherPod(ThreadPoolExecutor):
    """Threads; before each piece of work another pod of the node wants the model's room."""

    def __init__(self, want_room: Callable[[], None]) -> None:
        super().__init__(1)
        self._want_room = want_room

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        self._want_room()
        return super().submit(function, *arguments, **named)


def test_small_files_are_not_deleted_while_they_are_read(models: Path, tmp_path: Path) -> None:
    spec = spec_of("m", models / "tiny-bert")
    ours, others = (
        DiskCache(tmp_path / "cache", Storages(), Bandwidth(None)) for _ in ("ours", "others")
    )

    async def build() -> None:
        with BesideAnotherPod(lambda: others.discard(spec.key)) as threads:
            async with asyncio.TaskGroup() as tasks:
                await Processors(ours, threads, tasks).get(spec)

    asyncio.run(build())
    others.discard(spec.key)
    assert not ours.folder_of(spec.key).exists()
