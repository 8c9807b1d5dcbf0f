"""Models fetched by other libraries: the Hugging Face cache, and KServe's storage library."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import socket
import subprocess
import sys
import tarfile
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from registry.domain.model import ModelName, ModelSpec
from runtime.errors import ModelInvalid, StorageFailed
from runtime.storage.access import StorageAccess
from runtime.storage.bandwidth import Bandwidth
from runtime.storage.library import LibraryStorage
from runtime.storage.storages import StorageOptions, Storages
from runtime.tiers.disk_cache import DiskCache

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

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


# hf://


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
        pytest.param("hf://acme/other", "LocalEntryNotFound", id="not-cached"),
        pytest.param("hf://acme", "must be hf://organisation/model", id="no-model"),
        pytest.param("hf://acme/a/b", "must be hf://organisation/model", id="too-long"),
    ],
)
def test_missing_or_misnamed_hub_model_is_reported(
    offline_hub: dict[str, str], tmp_path: Path, uri: str, message: str
) -> None:
    with pytest.raises(StorageFailed, match=message):
        fetch(cache_with(offline_hub, tmp_path), uri)


# KServe's library


@contextlib.contextmanager
def web_server(folder: Path) -> Iterator[str]:
    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Keep the tests' output quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@needs_kserve_storage
def test_a_storage_that_sends_nothing_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}/model.tar.gz"
        access = StorageAccess(os.environ, is_pool=True)
        storage = LibraryStorage(uri, tmp_path / "staging", access, first_byte_timeout_s=0.5)
        with pytest.raises(StorageFailed, match="no byte arrived"):
            storage.list_files()
    assert not (tmp_path / "staging").exists()


@pytest.mark.slow
@needs_kserve_storage
def test_a_google_storage_that_fails_is_given_up_before_its_library_stops_trying(
    tmp_path: Path,
) -> None:
    """Google's library tries again for 120 s, while a request waits."""
    asked = []

    class Unavailable(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(503)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Keep the tests' output quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Unavailable) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            access = StorageAccess({**os.environ, "STORAGE_EMULATOR_HOST": url}, is_pool=True)
            storage = LibraryStorage(
                "gs://bucket/model", tmp_path / "staging", access, first_byte_timeout_s=10
            )
            began_s = time.monotonic()
            with pytest.raises(StorageFailed, match="no byte arrived within 10 s"):
                storage.list_files()
            assert time.monotonic() - began_s < 60
        finally:
            server.shutdown()
            thread.join()
    assert len(asked) > 1, "the library did not try again"


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
    with web_server(tmp_path / "web") as url:
        path = fetch(cache_with({}, tmp_path), f"{url}/model.tar")
    assert path.read_bytes() == WEIGHTS


@needs_kserve_storage
def test_refuses_an_archive_of_a_pickle(tmp_path: Path) -> None:
    make_archive(tmp_path / "web", {"config.json": b"{}", "pytorch_model.bin": WEIGHTS})
    with web_server(tmp_path / "web") as url, pytest.raises(ModelInvalid, match="only safetensors"):
        fetch(cache_with({}, tmp_path), f"{url}/model.tar")


@needs_kserve_storage
def test_refuses_an_archive_with_a_path_outside(tmp_path: Path) -> None:
    make_archive(tmp_path / "web", {"config.json": b"{}", "../../../escaped": b"x"})
    with web_server(tmp_path / "web") as url, pytest.raises(StorageFailed, match="unpack"):
        fetch(cache_with({}, tmp_path), f"{url}/model.tar")
    assert not list(tmp_path.rglob("escaped"))


@needs_kserve_storage
def test_missing_archive_is_reported(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    with web_server(tmp_path / "web") as url, pytest.raises(StorageFailed, match="not found"):
        fetch(cache_with({}, tmp_path), f"{url}/model.tar")


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


class _EndlessFile(SimpleHTTPRequestHandler):
    """Sends an endless file."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(bytes(1_000_000))

    def log_message(self, *_: object) -> None:
        """Keep the tests' output quiet."""


@needs_kserve_storage
def test_ends_a_fetch_above_the_size_limit(tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _EndlessFile)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        uri = f"http://127.0.0.1:{server.server_address[1]}/model.weights"
        access = StorageAccess(os.environ, is_pool=True)
        storage = LibraryStorage(uri, tmp_path / "staging", access, max_bytes=10_000_000)
        with pytest.raises(ModelInvalid, match="more than 10000000 bytes"):
            storage.list_files()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.skipif(
    importlib.util.find_spec("kserve_storage") is not None, reason="kserve-storage is installed"
)
def test_missing_library_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="install kserve-storage"):
        fetch(cache_with({}, tmp_path), "gs://bucket/model")


def test_unknown_scheme_is_reported_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match=r"ftp://x/y.*gs://.*hf://.*pvc://.*s3://"):
        fetch(cache_with({}, tmp_path), "ftp://x/y")
