"""Progress of a download, and the end of waits when it fails."""

import json
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from registry.domain.model import ModelName, ModelSpec
from runtime.errors import LoadCancelled, ModelInvalid
from runtime.storage.listing import RemoteFile
from runtime.storage.load_priority import LoadTicket
from runtime.storage.partial_file import SPAN_BYTES
from runtime.storage.ranged_download import Bandwidth
from runtime.storage.storages import StorageOptions, Storages
from runtime.tiers.disk_cache import DiskCache
from runtime.tiers.download import ArrivingWeights, Download

SHARDS = 6


def write_shard(path: Path, name: str, content_bytes: int) -> None:
    """A sparse safetensors file of one tensor of zeros."""
    entry = {"dtype": "U8", "shape": [content_bytes], "data_offsets": [0, content_bytes]}
    header = json.dumps({name: entry}).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + content_bytes)


@pytest.fixture
def sharded(tmp_path: Path) -> ModelSpec:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    names = [f"{number}.safetensors" for number in range(SHARDS)]
    for name in names:
        write_shard(folder / name, name, SPAN_BYTES + 1000)
    index = {"weight_map": {name: name for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return ModelSpec(ModelName("default", "m"), folder.as_uri())


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", Storages(StorageOptions({})), Bandwidth(None))


def test_all_shards_are_one_slab(cache: DiskCache, sharded: ModelSpec) -> None:
    cache.fetch_assets(sharded)
    ticket = LoadTicket()
    download = Download(cache.weight_files(sharded), ticket)
    cache.fetch_weights(sharded, ticket, download)
    assert download.headers.done()
    weights = ArrivingWeights(download)
    weights.wait_complete()
    assert [each.size_bytes for each in weights.layout.tensors] == [SPAN_BYTES + 1000] * SHARDS
    download.close()


def test_files_on_disk_count_as_arrived(cache: DiskCache, sharded: ModelSpec) -> None:
    cache.fetch_assets(sharded)
    cache.fetch_weights(sharded)
    ticket = LoadTicket()
    download = Download(cache.weight_files(sharded), ticket)
    cache.fetch_weights(sharded, ticket, download)
    assert download.headers.done()
    download.wait_finished()
    download.close()


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_failure_and_cancellation_end_waits(*, is_cancelled: bool) -> None:
    ticket = LoadTicket()
    download = Download([RemoteFile("a.safetensors", 100)], ticket)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(download.wait_finished)
        if is_cancelled:
            ticket.cancel("of the test")
        else:
            download.fail(ModelInvalid("damaged"))
        with pytest.raises(LoadCancelled if is_cancelled else ModelInvalid):
            waiting.result(60)
    download.close()
