"""Ranged downloads from S3: retries, reported faults, no partial file visible, no byte twice."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import httpx
import pytest

from pilotlight.platform.processes import object_store_command
from registry.domain.model import ModelName, ModelSpec
from runtime.errors import LoadFailed, ModelChanged, ModelInvalid, StorageFailed
from runtime.storage.partial_file import SPAN_BYTES
from runtime.storage.ranged_download import Bandwidth
from runtime.storage.storages import StorageOptions, Storages
from runtime.tiers.disk_cache import DiskCache
from tests import servers
from tests.runtime.faulty_proxy import Fault, FaultyProxy, ProxiedRequest, faulty_proxy

if TYPE_CHECKING:
    from pathlib import Path

    from mypy_boto3_s3.client import S3Client

pytestmark = pytest.mark.slow

WEIGHTS = "model.safetensors"
SPANS = 4
SIZE = (SPANS - 1) * SPAN_BYTES + 1234
BUCKET = "faults"


@pytest.fixture
def proxy(s3: servers.S3Server) -> Iterator[FaultyProxy]:
    with faulty_proxy(s3.url) as running:
        yield running


@pytest.fixture(scope="module")
def client(s3: servers.S3Server) -> Iterator[S3Client]:
    """A client of the server itself, past the proxy; makes the bucket."""
    made = s3.client()
    made.create_bucket(Bucket=BUCKET)
    yield made
    made.close()


@pytest.fixture(scope="module")
def weights() -> bytes:
    return random.Random(7).randbytes(SIZE)


@pytest.fixture
def spec(client: S3Client, weights: bytes, request: pytest.FixtureRequest) -> ModelSpec:
    """A model of four spans, with a checksum that S3 computes."""
    prefix = request.node.name.replace("[", "-").rstrip("]")
    client.put_object(Bucket=BUCKET, Key=f"{prefix}/config.json", Body=b"{}")
    client.put_object(
        Bucket=BUCKET, Key=f"{prefix}/{WEIGHTS}", Body=weights, ChecksumAlgorithm="CRC32"
    )
    return ModelSpec(ModelName("default", "m"), f"s3://{BUCKET}/{prefix}")


MakeCache = Callable[..., DiskCache]


@pytest.fixture
def make_cache(proxy: FaultyProxy, tmp_path: Path) -> Iterator[MakeCache]:
    """Makes caches in one folder, like the pods of a node or a restarted pod."""
    with ExitStack() as stack:

        def make(read_timeout_s: float = 60.0) -> DiskCache:
            options = StorageOptions(environment=proxy.environment, read_timeout_s=read_timeout_s)
            cache = DiskCache(tmp_path / "cache", Storages(options), Bandwidth(None))
            stack.callback(cache.close)
            return cache

        yield make


@pytest.fixture
def cache(make_cache: MakeCache) -> DiskCache:
    return make_cache()


def fetch(cache: DiskCache, spec: ModelSpec) -> bytes:
    cache.fetch_assets(spec)
    (path,) = cache.fetch_weights(spec)
    return path.read_bytes()


class FirstResponses:
    """Applies a fault to the first responses for each range of the weights."""

    def __init__(self, fault: Fault, times: int = 1) -> None:
        self._fault = fault
        self._times = times
        self._seen: dict[int, int] = {}
        self._lock = threading.Lock()

    def __call__(self, request: ProxiedRequest) -> Fault | None:
        if request.range is None or not request.path.endswith(WEIGHTS):
            return None
        with self._lock:
            # A range that continues an interrupted one ends at the same byte.
            seen = self._seen[request.range[1]] = self._seen.get(request.range[1], 0) + 1
        return self._fault if seen <= self._times else None


def last_span(request: ProxiedRequest) -> bool:
    return request.range is not None and request.range[1] == SIZE - 1


def test_ranges_cover_an_object_once(
    cache: DiskCache, proxy: FaultyProxy, spec: ModelSpec, weights: bytes
) -> None:
    assert fetch(cache, spec) == weights
    request = sorted(each.range for each in proxy.ranges(WEIGHTS) if each.range)
    assert [end - start + 1 for start, end in request] == [SPAN_BYTES] * 3 + [1234]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(reset_at=100_000), id="reset"),
        pytest.param(Fault(reset_at=0), id="reset-at-once"),
        pytest.param(Fault(cut_at=1000), id="short-body"),
        pytest.param(Fault(cut_at=0), id="empty-body"),
        pytest.param(Fault(status=500), id="500"),
        pytest.param(Fault(status=503), id="503"),
        pytest.param(Fault(status=429), id="429"),
    ],
)
def test_retries_transient_faults_of_every_range(
    cache: DiskCache, proxy: FaultyProxy, spec: ModelSpec, weights: bytes, fault: Fault
) -> None:
    proxy.fault = FirstResponses(fault, times=2)
    assert fetch(cache, spec) == weights
    assert len(proxy.ranges(WEIGHTS)) >= 3 * (
        SPANS - 1
    )  # the last span is shorter than a fault's offset


def test_retries_stalled_responses(
    make_cache: MakeCache, proxy: FaultyProxy, spec: ModelSpec, weights: bytes
) -> None:
    proxy.fault = FirstResponses(Fault(stall_at=1000), times=2)
    assert fetch(make_cache(read_timeout_s=3), spec) == weights
    assert len(proxy.ranges(WEIGHTS)) >= 3 * (SPANS - 1)


def test_interrupted_range_continues_where_it_was(
    cache: DiskCache, proxy: FaultyProxy, spec: ModelSpec, weights: bytes
) -> None:
    proxy.fault = FirstResponses(Fault(cut_at=1_000_000))
    assert fetch(cache, spec) == weights
    starts = {each.range[0] for each in proxy.ranges(WEIGHTS) if each.range}
    assert {1_000_000, SPAN_BYTES + 1_000_000} <= starts


@pytest.mark.parametrize(
    ("status", "kind"),
    [pytest.param(403, StorageFailed, id="403"), pytest.param(404, ModelChanged, id="404")],
)
def test_client_errors_are_reported_without_retry(
    cache: DiskCache, proxy: FaultyProxy, spec: ModelSpec, status: int, kind: type[LoadFailed]
) -> None:
    proxy.fault = lambda request: Fault(status=status) if last_span(request) else None
    with pytest.raises(kind, match=f"{WEIGHTS}: {status} Injected{status}"):
        fetch(cache, spec)
    assert sum(map(last_span, proxy.requests)) == 1
    assert visible(cache, spec) == {"config.json"}


def test_fails_after_the_last_attempt(
    cache: DiskCache, proxy: FaultyProxy, spec: ModelSpec
) -> None:
    proxy.fault = lambda request: Fault(status=500) if last_span(request) else None
    with pytest.raises(StorageFailed, match=r"6 times in a row.*500 Injected500"):
        fetch(cache, spec)
    assert sum(map(last_span, proxy.requests)) == 6
    assert visible(cache, spec) == {"config.json"}


def test_next_download_requests_only_missing_ranges(
    cache: DiskCache, make_cache: MakeCache, proxy: FaultyProxy, spec: ModelSpec, weights: bytes
) -> None:
    folder = cache.folder_of(spec.key).parent

    def refuse_after_a_span(request: ProxiedRequest) -> Fault | None:
        if not last_span(request):
            return None
        servers.wait_until(lambda: bool(journal_lines(folder)), what="a span is written")
        return Fault(status=403)

    proxy.fault = refuse_after_a_span
    with pytest.raises(StorageFailed):
        fetch(cache, spec)
    here = written_bytes(folder)
    assert here
    proxy.fault = lambda _: None
    proxy.requests.clear()
    assert fetch(make_cache(), spec) == weights
    assert requested_bytes(proxy) == SIZE - here


def test_range_stopped_by_another_error_continues_where_it_was(
    cache: DiskCache, make_cache: MakeCache, proxy: FaultyProxy, spec: ModelSpec, weights: bytes
) -> None:
    folder, refused = cache.folder_of(spec.key).parent, threading.Event()
    cut = 1_000_000

    def cut_the_first_and_refuse_the_last(request: ProxiedRequest) -> Fault | None:
        if request.range is None or not request.path.endswith(WEIGHTS):
            return None
        if request.range[0] == 0:
            return Fault(cut_at=cut)
        if request.range[0] < SPAN_BYTES:  # a broken connection may lose what was under way
            return Fault(until=refused, status=500)
        if not last_span(request):
            return None
        servers.wait_until(lambda: bool(journal_lines(folder)), what="a span is written")
        refused.set()
        return Fault(status=403)

    proxy.fault = cut_the_first_and_refuse_the_last
    with pytest.raises(StorageFailed):
        fetch(cache, spec)
    proxy.fault = lambda _: None
    proxy.requests.clear()
    assert fetch(make_cache(), spec) == weights
    ranges = [each.range for each in proxy.ranges(WEIGHTS) if each.range]
    starts = [start for start, end in ranges if end == SPAN_BYTES - 1]
    assert 0 < min(starts) <= cut


def test_refuses_an_object_replaced_during_the_download(
    cache: DiskCache, proxy: FaultyProxy, spec: ModelSpec, weights: bytes, client: S3Client
) -> None:
    prefix = spec.storage_uri.removeprefix(f"s3://{BUCKET}/")
    other = weights[::-1]

    def replace(request: ProxiedRequest) -> None:
        if last_span(request) and sum(map(last_span, proxy.requests)) == 1:
            client.put_object(Bucket=BUCKET, Key=f"{prefix}/{WEIGHTS}", Body=other)

    proxy.fault = replace
    with pytest.raises(ModelChanged, match="replaced"):
        fetch(cache, spec)
    assert visible(cache, spec) == {"config.json"}
    proxy.fault = lambda _: None
    cache.discard(spec.key)  # as a failed load does
    assert fetch(cache, spec) == other


def test_refuses_an_object_replaced_after_the_listing(
    cache: DiskCache, spec: ModelSpec, weights: bytes, client: S3Client
) -> None:
    cache.fetch_assets(spec)
    prefix = spec.storage_uri.removeprefix(f"s3://{BUCKET}/")
    client.put_object(Bucket=BUCKET, Key=f"{prefix}/{WEIGHTS}", Body=weights[::-1])
    with pytest.raises(ModelChanged, match="replaced"):
        cache.fetch_weights(spec)


def test_refuses_bytes_with_another_checksum(
    cache: DiskCache, proxy: FaultyProxy, spec: ModelSpec
) -> None:
    proxy.fault = FirstResponses(Fault(flip=1000))
    with pytest.raises(ModelChanged, match="does not have the CRC32 that S3 keeps"):
        fetch(cache, spec)
    assert visible(cache, spec) == {"config.json"}
    assert not list(cache.folder_of(spec.key).rglob("*.part*"))


def test_adds_readers_for_a_slow_server(
    cache: DiskCache, proxy: FaultyProxy, spec: ModelSpec, weights: bytes
) -> None:
    def slow(request: ProxiedRequest) -> Fault | None:
        """Delay the second and the last span, so that three are read at once."""
        if request.range is None or not request.path.endswith(WEIGHTS):
            return None
        rates = {SPAN_BYTES: SPAN_BYTES / 3, SIZE - 1234: 1000}
        return Fault(bytes_per_s=rates.get(request.range[0], 4 * SPAN_BYTES))

    proxy.fault = slow
    assert fetch(cache, spec) == weights
    assert proxy.max_concurrent >= 3


def test_missing_object_and_bucket_are_reported(cache: DiskCache, spec: ModelSpec) -> None:
    for uri, told in (
        (f"{spec.storage_uri}-not", "no object has this prefix"),
        ("s3://no-such-bucket/m", "cannot be listed"),
    ):
        with pytest.raises(StorageFailed, match=told):
            cache.fetch_assets(ModelSpec(ModelName("default", "m"), uri))


def test_refuses_a_key_outside_its_folder(
    cache: DiskCache, spec: ModelSpec, client: S3Client
) -> None:
    prefix = spec.storage_uri.removeprefix(f"s3://{BUCKET}/")
    client.put_object(Bucket=BUCKET, Key=f"{prefix}/a\\..\\config.json", Body=b"{}")
    with pytest.raises(ModelInvalid, match="outside its folder"):
        cache.fetch_assets(spec)
    assert cache.keys() == set()


def test_accepts_ranges_answered_with_200(spec: ModelSpec, weights: bytes, tmp_path: Path) -> None:
    """The object store of the one-machine platform, which also ignores `If-Match`."""
    folder = tmp_path / "objects" / BUCKET / "m"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / WEIGHTS).write_bytes(weights)
    port = servers.free_port()
    command = object_store_command(port, tmp_path / "objects", tmp_path / "sums")
    store = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    storages = Storages(
        StorageOptions(environment=servers.S3Server(f"http://127.0.0.1:{port}").environment)
    )
    try:
        servers.wait_until(
            lambda: httpx.get(
                f"http://127.0.0.1:{port}/", trust_env=False, verify=False, timeout=60
            ),
            what="rclone responds",
        )
        cache = DiskCache(tmp_path / "cache", storages, Bandwidth(None))
        assert fetch(cache, ModelSpec(spec.name, f"s3://{BUCKET}/m")) == weights
    finally:
        storages.close()
        servers.end_process(store)


def test_closing_ends_downloads_and_waits_and_keeps_written_ranges(
    make_cache: MakeCache, proxy: FaultyProxy, spec: ModelSpec, weights: bytes
) -> None:
    first, second, third = make_cache(), make_cache(), make_cache()
    slow = Fault(bytes_per_s=SPAN_BYTES / 10)
    proxy.fault = lambda request: slow if request.range and request.range[0] else None
    first.fetch_assets(spec)
    with ThreadPoolExecutor(2) as threads:
        loading = threads.submit(first.fetch_weights, spec)
        folder = first.folder_of(spec.key).parent
        servers.wait_until(lambda: journal_lines(folder), what="a span is written")
        waiting = threads.submit(second.fetch_weights, spec)
        for cache in (second, first):
            cache.close()
        for fetching in (waiting, loading):
            with pytest.raises(StorageFailed, match="shuts down"):
                fetching.result(timeout=60)
    here = written_bytes(folder)
    proxy.fault = lambda _: None
    proxy.requests.clear()
    assert fetch(third, spec) == weights
    assert requested_bytes(proxy) == SIZE - here < SIZE


def test_reads_through_the_proxy_of_the_environment(
    proxy: FaultyProxy, spec: ModelSpec, s3: servers.S3Server, tmp_path: Path
) -> None:
    environment = {**s3.environment, "HTTP_PROXY": proxy.url, "NO_PROXY": "", "no_proxy": ""}
    assert end(start_fetch(environment, spec, tmp_path / "cache")) == (0, "")
    assert len(proxy.ranges(WEIGHTS)) == SPANS


def start_fetch(
    environment: Mapping[str, str], spec: ModelSpec, folder: Path, *limits: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.runtime.storage.fetch_in_process"),
            *(str(folder), spec.storage_uri, *map(str, limits)),
        ],
        cwd=servers.REPOSITORY,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
    )


def end(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    out, _ = process.communicate(timeout=600)
    return process.returncode, out.decode()


def test_processes_share_one_download(
    proxy: FaultyProxy, spec: ModelSpec, weights: bytes, tmp_path: Path, make_cache: MakeCache
) -> None:
    proxy.fault = lambda request: Fault(bytes_per_s=2 * SPAN_BYTES) if request.range else None
    fetches = [start_fetch(proxy.environment, spec, tmp_path / "cache") for _ in range(3)]
    assert [end(each) for each in fetches] == [(0, "")] * 3
    assert len(proxy.ranges(WEIGHTS)) == SPANS
    assert len(proxy.ranges("config.json")) == 1
    assert fetch(make_cache(), spec) == weights
    assert len(proxy.ranges(WEIGHTS)) == SPANS


def test_process_continues_the_download_of_a_killed_one(
    proxy: FaultyProxy, spec: ModelSpec, weights: bytes, tmp_path: Path
) -> None:
    slow = Fault(bytes_per_s=SPAN_BYTES)
    proxy.fault = lambda request: slow if request.range and not last_span(request) else None
    folder = tmp_path / "cache"
    first = start_fetch(proxy.environment, spec, folder)
    servers.wait_until(lambda: len(journal_lines(folder)) >= 1, what="a span is written")
    second = start_fetch(proxy.environment, spec, folder)
    servers.wait_until(lambda: len(list(folder.glob(".locks/*.fetch"))) == 1)
    first.kill()
    first.wait()
    here = journal_lines(folder)
    assert not list(folder.glob(f"*/{WEIGHTS}"))
    asked_before = len(proxy.ranges(WEIGHTS))
    proxy.fault = lambda _: None
    assert end(second) == (0, "")
    begun = {json.loads(line)[0] for line in here}
    asked_after = {
        request.range[0] for request in proxy.ranges(WEIGHTS)[asked_before:] if request.range
    }
    assert not begun & asked_after  # written ranges are not fetched again
    (path,) = folder.glob(f"*/{WEIGHTS}")
    assert path.read_bytes() == weights
    assert first.stdout is not None
    first.stdout.close()


def written_bytes(folder: Path) -> int:
    """Bytes that the journal records as written."""
    spans = [json.loads(line) for line in journal_lines(folder)]
    return sum(end - start for start, end, _ in spans)


def requested_bytes(proxy: FaultyProxy) -> int:
    """Bytes of the weights that were requested."""
    ranges = [each.range for each in proxy.ranges(WEIGHTS) if each.range]
    return sum(last + 1 - first for first, last in ranges)


def journal_lines(folder: Path) -> list[str]:
    """The lines of the journal after its header."""
    journals = list(folder.glob(f"*/{WEIGHTS}.part.spans"))
    return journals[0].read_text().splitlines()[1:] if journals else []


def test_file_above_the_size_limit_fails_before_the_download(
    proxy: FaultyProxy, spec: ModelSpec, tmp_path: Path
) -> None:
    folder = tmp_path / "cache"
    status, out = end(start_fetch(proxy.environment, spec, folder, SIZE // 2))
    assert status == 3
    assert out.startswith("DiskFull: ")
    assert str(SIZE) in out
    assert not list(folder.rglob("*.part*"))
    assert not proxy.ranges(WEIGHTS)


def visible(cache: DiskCache, spec: ModelSpec) -> set[str]:
    """The files under their final names."""
    folder = cache.folder_of(spec.key)
    names = (path.name for path in folder.iterdir() if not path.name.startswith("."))
    return {name for name in names if ".part" not in name}


@pytest.mark.parametrize(
    "uri",
    [
        pytest.param("s3://one-model/m/model.skops", id="key"),
        pytest.param("s3://one-model/m/model.skops/", id="trailing slash"),
        pytest.param("s3://one-model//m//model.skops", id="double slashes"),
        pytest.param("s3://one-model/with space/model.skops", id="space"),
        pytest.param("s3://one-model/with%20space/model.skops", id="percent"),
        pytest.param("s3://one-model/with%20space", id="folder with percent"),
        pytest.param("s3://one-model/100%25/model.skops", id="literal percent"),
        pytest.param("s3://whole-bucket", id="bucket"),
        pytest.param("s3://whole-bucket/", id="bucket with slash"),
    ],
)
def test_a_uri_names_a_folder_an_object_or_a_bucket(
    client: S3Client, cache: DiskCache, proxy: FaultyProxy, uri: str
) -> None:
    proxy.fault = lambda request: Fault(status=400) if "//" in request.path else None
    for bucket in ("one-model", "whole-bucket"):
        client.create_bucket(Bucket=bucket)
    client.put_object(Bucket="whole-bucket", Key="model.skops", Body=b"skops")
    for folder in ("m", "with space", "100%25"):
        client.put_object(Bucket="one-model", Key=f"{folder}/model.skops", Body=b"skops")
    client.put_object(Bucket="one-model", Key="m/other.skops", Body=b"other")
    spec = ModelSpec(ModelName("default", "m"), uri, format="sklearn")
    model_folder = cache.fetch_assets(spec)
    assert [path.read_bytes() for path in cache.fetch_weights(spec)] == [b"skops"]
    assert (model_folder / "model.skops").exists()


def test_a_single_object_that_was_replaced_is_not_mixed(
    client: S3Client, cache: DiskCache, proxy: FaultyProxy
) -> None:
    client.create_bucket(Bucket="replaced")
    client.put_object(Bucket="replaced", Key="model.pt2", Body=b"old")
    spec = ModelSpec(ModelName("default", "m"), "s3://replaced/model.pt2", format="pytorch")

    def replace(request: ProxiedRequest) -> Fault | None:
        if request.range is not None:
            client.put_object(Bucket="replaced", Key="model.pt2", Body=b"new")
        return None

    proxy.fault = replace
    with pytest.raises(ModelChanged, match="replaced"):
        cache.fetch_assets(spec)


def test_missing_keys_are_asked_for_with_the_endpoint(
    proxy: FaultyProxy, spec: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    environment = {name: value for name, value in proxy.environment.items() if "KEY" not in name}
    cache = DiskCache(tmp_path / "cache", Storages(StorageOptions(environment)), Bandwidth(None))
    with pytest.raises(StorageFailed) as told:
        cache.fetch_assets(spec)
    assert f"at {proxy.environment['AWS_ENDPOINT_URL']}: Unable to locate credentials" in str(
        told.value
    )
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of `pilotlight up`" in str(told.value)


def test_a_store_that_does_not_answer_is_named(spec: ModelSpec, tmp_path: Path) -> None:
    endpoint = f"http://127.0.0.1:{servers.free_port()}"
    environment = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    cache = DiskCache(tmp_path / "cache", Storages(StorageOptions(environment)), Bandwidth(None))
    with pytest.raises(StorageFailed, match=f"at {endpoint}: .*check AWS_ENDPOINT_URL"):
        cache.fetch_assets(spec)


def test_the_start_of_an_object_is_read_alone(
    cache: DiskCache, proxy: FaultyProxy, spec: ModelSpec, weights: bytes
) -> None:
    cache.fetch_assets(spec)
    (file,) = cache.weight_files(spec)
    assert cache.source(spec).read_start(file, 1000) == weights[:1000]
    assert [each.range for each in proxy.ranges(WEIGHTS)] == [(0, 999)]
