"""Models fetched by other libraries: the Hugging Face cache, and KServe's storage library."""

import asyncio
import contextlib
import importlib.util
import io
import os
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from registry.domain.model import ModelName, ModelSpec
from runtime.errors import LoadCancelled, ModelInvalid, StorageFailed
from runtime.storage.access import StorageAccess
from runtime.storage.file import fetched_folder
from runtime.storage.load_priority import LoadTicket
from runtime.storage.partial_file import folder_bytes
from runtime.storage.ranged_download import Bandwidth
from runtime.storage.storages import StorageOptions, Storages
from runtime.tiers.disk_cache import DiskCache
from runtime.tiers.generation_folder import STAGING
from tests import servers
from tests.http_server import Handler, http_server
from tests.hub import running_hub
from tests.runtime.large_models import until
from tests.runtime.local_pod import local_pod

pytestmark = pytest.mark.slow

REVISION = "a" * 40
WEIGHTS = os.urandom(100_000)

needs_kserve_storage = pytest.mark.skipif(
    importlib.util.find_spec("kserve_storage") is None, reason="kserve-storage is not installed"
)


def cache_with(environment: Mapping[str, str], tmp_path: Path) -> DiskCache:
    options = StorageOptions(environment={**os.environ, **environment})
    return DiskCache(tmp_path / "cache", Storages(options), Bandwidth(None))


def fetch(cache: DiskCache, uri: str) -> Path:
    spec = ModelSpec(ModelName("default", "m"), uri)
    cache.fetch_assets(spec)
    (path,) = cache.fetch_weights(spec)
    return path


@pytest.fixture
def offline_hub(tmp_path: Path) -> dict[str, str]:
    """A cache in the layout of huggingface_hub with one model, whose files link to blobs."""
    home = tmp_path / "hub-home"
    model = home / "hub" / "models--acme--tiny"
    snapshot, blobs = model / "snapshots" / REVISION, model / "blobs"
    for folder in (snapshot, blobs, model / "refs"):
        folder.mkdir(parents=True)
    (model / "refs" / "main").write_text(REVISION)
    for name, content in {"config.json": b"{}", "model.safetensors": WEIGHTS}.items():
        (blobs / name).write_bytes(content)
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    return {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}


@pytest.mark.parametrize(
    "uri",
    [
        pytest.param("hf://acme/tiny", id="main"),
        pytest.param(f"hf://acme/tiny:{REVISION}", id="revision"),
    ],
)
def test_reads_the_offline_cache_of_the_hub(
    offline_hub: dict[str, str], tmp_path: Path, uri: str
) -> None:
    path = fetch(cache_with(offline_hub, tmp_path), uri)
    assert path.read_bytes() == WEIGHTS
    assert not path.is_symlink()
    assert not (path.parent / ".staging").exists()


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        pytest.param("hf://acme/other", "HF_HUB_OFFLINE is set", id="not-cached"),
        pytest.param("hf://acme", "must be hf://organisation/model", id="no-model"),
        pytest.param("hf://acme/a/b", "must be hf://organisation/model", id="too-long"),
    ],
)
def test_missing_or_misnamed_hub_model_is_reported(
    offline_hub: dict[str, str], tmp_path: Path, uri: str, message: str
) -> None:
    with pytest.raises(StorageFailed, match=message):
        fetch(cache_with(offline_hub, tmp_path), uri)


FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS, "chat_template.jinja": b"{{ x }}",
         "onnx/model.onnx": b"onnx", "pytorch_model.bin": b"pickle",
         "onnx/model_q4.onnx": b"small", "model.skops": b"skops"}  # fmt: skip
REPOSITORY = {"acme/tiny": {"main": FILES, "v2": {**FILES, "model.safetensors": b"second"}}}


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        pytest.param("hf://acme/tiny", WEIGHTS, id="main"),
        pytest.param("hf://acme/tiny:v2", b"second", id="revision"),
        pytest.param("hf://acme/tiny@v2", b"second", id="revision after @"),
    ],
)
def test_downloads_from_the_hub_that_the_environment_names(
    tmp_path: Path, uri: str, expected: bytes
) -> None:
    with running_hub(REPOSITORY, token="hf_secret") as hub:
        environment = {
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": "hf_secret",
            "HF_HOME": str(tmp_path / "hub"),
        }
        path = fetch(cache_with(environment, tmp_path), uri)
    assert path.read_bytes() == expected
    found = {str(each.relative_to(path.parent)) for each in path.parent.rglob("[!.]*.*")}
    assert found == {"config.json", "model.safetensors", "chat_template.jinja"}


@pytest.mark.parametrize(
    ("model_format", "expected"), [("onnx", "onnx/model.onnx"), ("sklearn", "model.skops")]
)
def test_only_files_of_the_declared_format_are_downloaded_from_the_hub(
    tmp_path: Path, model_format: str, expected: str
) -> None:
    with running_hub(REPOSITORY) as hub:
        environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hub")}
        cache = cache_with(environment, tmp_path)
        spec = ModelSpec(ModelName("default", "m"), "hf://acme/tiny", format=model_format)
        folder = cache.fetch_assets(spec)
        (path,) = cache.fetch_weights(spec)
    assert str(path.relative_to(folder)) == expected
    resolved = {each.rpartition("/resolve/")[2] for each in hub.requests if "/resolve/" in each}
    assert {each.partition("/")[2] for each in resolved} == {expected}


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        pytest.param("hf://acme/none", "RepositoryNotFound", id="repository"),
        pytest.param("hf://acme/tiny:v9", "RevisionNotFound", id="revision"),
    ],
)
def test_what_the_hub_does_not_have_is_told(tmp_path: Path, uri: str, told: str) -> None:
    with running_hub(REPOSITORY) as hub:
        environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hub")}
        with pytest.raises(StorageFailed, match=told):
            fetch(cache_with(environment, tmp_path), uri)


def test_a_hub_that_does_not_answer_is_named(tmp_path: Path) -> None:
    endpoint = f"http://127.0.0.1:{servers.free_port()}"
    environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hub")}
    with pytest.raises(StorageFailed, match=f"the hub at {endpoint} does not answer") as told:
        fetch(cache_with(environment, tmp_path), "hf://acme/tiny")
    assert "OFFLINE" not in str(told.value)


class Quiet(Handler, SimpleHTTPRequestHandler):
    """Files of a folder."""


def folder_server(folder: Path) -> contextlib.AbstractContextManager[str]:
    return http_server(partial(Quiet, directory=str(folder)))


@needs_kserve_storage
def test_a_storage_that_sends_nothing_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}/model.tar.gz"
        access = StorageAccess(os.environ, is_pool=True)
        with pytest.raises(StorageFailed, match="no byte arrived"):
            fetched_folder(uri, tmp_path / "staging", access, first_byte_timeout_s=0.5)
    assert not (tmp_path / "staging").exists()


class Stopping(Handler):
    """Sends a part of a file, and then nothing."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/octet-stream")
        self.send_header("content-length", str(1 << 30))
        self.end_headers()
        self.wfile.write(bytes(1 << 22))
        self.wfile.flush()
        self.rfile.read()  # until the other side closes the connection


@needs_kserve_storage
async def test_a_fetch_by_a_library_ends_with_its_load(tmp_path: Path) -> None:
    with http_server(Stopping) as address:
        spec = ModelSpec(ModelName("default", "m"), f"http://{address}/model.onnx")
        async with local_pod(tmp_path, environment=os.environ) as pod:
            staging = pod.loader.resolver.cache.folder_of(spec.key) / STAGING
            loading = asyncio.create_task(pod.load(spec))
            await until(lambda: folder_bytes(staging) > 1 << 20, "the library writes")
            pod.coordinator.loads.running[spec.key].ticket.cancel("of the test")
            with pytest.raises(LoadCancelled):
                await loading
            await until(lambda: not staging.exists(), "its process has ended")


WRITER = """
import itertools, os

class Storage:
    @staticmethod
    def download(uri, folder):
        for number in itertools.count():
            part = os.path.join(folder, str(number % 50))
            os.makedirs(part, exist_ok=True)
            with open(os.path.join(part, str(number)), "wb") as file:
                file.write(bytes(4096))
"""
"""A library that writes many files, in folders that it makes."""


def test_a_cancelled_fetch_leaves_nothing_of_what_its_library_still_writes(tmp_path: Path) -> None:
    (tmp_path / "kserve_storage.py").write_text(WRITER)
    staging, ticket = tmp_path / "staging", LoadTicket()
    access = StorageAccess({**os.environ, "PYTHONPATH": str(tmp_path)}, is_pool=True)
    with ThreadPoolExecutor(1) as threads:
        fetch = threads.submit(fetched_folder, "gs://b/m", staging, access, ticket=ticket)
        while folder_bytes(staging) < 1 << 20 and not fetch.done():
            time.sleep(0.01)
        ticket.cancel("of the test")
        with pytest.raises(LoadCancelled):
            fetch.result()
    assert not staging.exists()


@needs_kserve_storage
def test_a_google_storage_that_fails_is_given_up_before_its_library_stops_trying(
    tmp_path: Path,
) -> None:
    """Google's library tries again for 120 s, while a request waits."""
    asked = []

    class Unavailable(Handler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.answer(503)

    with http_server(Unavailable) as address:
        environment = {**os.environ, "STORAGE_EMULATOR_HOST": f"http://{address}"}
        access = StorageAccess(environment, is_pool=True)
        began_s = time.monotonic()
        with pytest.raises(StorageFailed, match="no byte arrived within 20 s"):
            fetched_folder("gs://b/model", tmp_path / "staging", access, first_byte_timeout_s=20)
        assert time.monotonic() - began_s < 110
    assert len(asked) > 1, "the library did not try again"


def test_a_refused_fetch_says_with_what_it_was_read_and_who_grants_the_pools(
    tmp_path: Path,
) -> None:
    class Private(Handler):
        def do_GET(self) -> None:
            self.answer(401)

        do_HEAD = do_GET

    with http_server(Private) as address:
        environment = {**os.environ, "HF_ENDPOINT": f"http://{address}"}
        access = StorageAccess(environment, is_pool=False, credentials="no credentials")
        with pytest.raises(StorageFailed, match="cannot be fetched") as caught:
            fetched_folder("hf://team/private", tmp_path / "staging", access)
    assert "it was read with no credentials" in str(caught.value)
    assert "the tenant's ConfigMap" in str(caught.value)


def make_archive(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir()
    with tarfile.open(folder / "model.tar", "w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


@needs_kserve_storage
def test_unpacks_an_archive_of_a_web_server(tmp_path: Path) -> None:
    make_archive(tmp_path / "web", {"config.json": b"{}", "model.safetensors": WEIGHTS})
    with folder_server(tmp_path / "web") as address:
        path = fetch(cache_with({}, tmp_path), f"http://{address}/model.tar")
    assert path.read_bytes() == WEIGHTS


@needs_kserve_storage
def test_refuses_an_archive_of_a_pickle(tmp_path: Path) -> None:
    make_archive(tmp_path / "web", {"config.json": b"{}", "pytorch_model.bin": WEIGHTS})
    with (
        folder_server(tmp_path / "web") as address,
        pytest.raises(ModelInvalid, match="only safetensors"),
    ):
        fetch(cache_with({}, tmp_path), f"http://{address}/model.tar")


@needs_kserve_storage
def test_refuses_an_archive_with_a_path_outside(tmp_path: Path) -> None:
    make_archive(tmp_path / "web", {"config.json": b"{}", "../../../escaped": b"x"})
    with folder_server(tmp_path / "web") as address, pytest.raises(StorageFailed, match="unpack"):
        fetch(cache_with({}, tmp_path), f"http://{address}/model.tar")
    assert not list(tmp_path.rglob("escaped"))


@needs_kserve_storage
def test_missing_archive_is_reported(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    with (
        folder_server(tmp_path / "web") as address,
        pytest.raises(StorageFailed, match="not found"),
    ):
        fetch(cache_with({}, tmp_path), f"http://{address}/model.tar")


@pytest.mark.parametrize("name", ["../escaped", "a/../../escaped", "/{outside}/escaped"])
def test_library_writes_only_to_its_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "staging"
    (folder / "a").mkdir(parents=True)
    code = (
        "import sys; from pathlib import Path; from runtime.storage.library_fetch import confine;"
        "folder = Path(sys.argv[1]); confine(folder); (folder / 'within').write_text('x');"
        "(folder / sys.argv[2]).write_text('x')"
    )
    target = name.format(outside=tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder), target], capture_output=True, check=False
    )
    assert b"PermissionError: the model has a file with a path outside" in done.stderr
    assert (folder / "within").exists()
    assert not list(tmp_path.rglob("escaped"))


class _EndlessFile(Handler):
    """Sends an endless file."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(bytes(1_000_000))


@needs_kserve_storage
def test_ends_a_fetch_above_the_size_limit(tmp_path: Path) -> None:
    with http_server(_EndlessFile) as address:
        access = StorageAccess(os.environ, is_pool=True)
        uri = f"http://{address}/model.weights"
        with pytest.raises(ModelInvalid, match="more than 10000000 bytes"):
            fetched_folder(uri, tmp_path / "staging", access, max_bytes=10_000_000)


@pytest.mark.skipif(
    importlib.util.find_spec("kserve_storage") is not None, reason="kserve-storage is installed"
)
def test_missing_library_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="install kserve-storage"):
        fetch(cache_with({}, tmp_path), "gs://bucket/model")


def test_unknown_scheme_is_reported_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match=r"ftp://x/y.*gs://.*hf://.*pvc://.*s3://"):
        fetch(cache_with({}, tmp_path), "ftp://x/y")
