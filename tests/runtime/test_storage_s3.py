"""S3 in ranges: faults are got over or told, nothing half-fetched shows, nothing comes twice."""

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

import boto3
import httpx
import pytest

from pilotlight.platform.bundled_servers import object_store_command
from registry.domain.model import ModelName, ModelSpec
from runtime.errors import LoadFailed, ModelChanged, ModelInvalid, StorageFailed
from runtime.storage.bandwidth import Bandwidth
from runtime.storage.partial_file import SPAN_BYTES
from runtime.storage.storages import StorageOptions, Storages
from runtime.tiers.disk_cache import DiskCache
from tests import servers
from tests.runtime.faults import Asked, Fault, FaultyProxy, faulty_proxy

if TYPE_CHECKING:
    from pathlib import Path

    from mypy_boto3_s3.client import S3Client

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
    """A client of the server itself, with the bucket made."""
    made = boto3.session.Session().client(
        "s3",
        endpoint_url=s3.url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    made.create_bucket(Bucket=BUCKET)
    yield made
    made.close()


@pytest.fixture(scope="module")
def weights() -> bytes:
    return random.Random(7).randbytes(SIZE)


@pytest.fixture
def spec(client: S3Client, weights: bytes, request: pytest.FixtureRequest) -> ModelSpec:
    """A model of four spans, with a checksum of S3's own."""
    prefix = request.node.name.replace("[", "-").rstrip("]")
    client.put_object(Bucket=BUCKET, Key=f"{prefix}/config.json", Body=b"{}")
    client.put_object(
        Bucket=BUCKET, Key=f"{prefix}/{WEIGHTS}", Body=weights, ChecksumAlgorithm="CRC32"
    )
    return ModelSpec(ModelName("default", "m"), f"s3://{BUCKET}/{prefix}")


MakeCache = Callable[..., DiskCache]


@pytest.fixture
def make_cache(proxy: FaultyProxy, tmp_path: Path) -> Iterator[MakeCache]:
    """Makes caches in one folder, as the pods of a node or a restarted pod do."""
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


class Once:
    """Spoils the first answer for each range of the weights."""

    def __init__(self, fault: Fault, times: int = 1) -> None:
        self._fault = fault
        self._times = times
        self._seen: dict[int, int] = {}
        self._lock = threading.Lock()

    def __call__(self, asked: Asked) -> Fault | None:
        if asked.range is None or not asked.path.endswith(WEIGHTS):
            return None
        with self._lock:
            # Ranges that go on where one broke off end at the same byte.
            seen = self._seen[asked.range[1]] = self._seen.get(asked.range[1], 0) + 1
        return self._fault if seen <= self._times else None


def last_span(asked: Asked) -> bool:
    return asked.range is not None and asked.range[1] == SIZE - 1


def test_object_arrives_in_ranges_that_cover_it_once(
    cache: DiskCache, proxy: FaultyProxy, spec: ModelSpec, weights: bytes
) -> None:
    assert fetch(cache, spec) == weights
    asked = sorted(each.range for each in proxy.ranges(WEIGHTS) if each.range)
    assert [end - start + 1 for start, end in asked] == [SPAN_BYTES] * 3 + [1234]


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
def test_passing_fault_of_every_range_is_got_over(
    cache: DiskCache, proxy: FaultyProxy, spec: ModelSpec, weights: bytes, fault: Fault
) -> None:
    proxy.fault = Once(fault, times=2)
    assert fetch(cache, spec) == weights
    assert len(proxy.ranges(WEIGHTS)) >= 3 * (SPANS - 1)  # the last one is shorter than a fault


@pytest.mark.slow
def test_answers_that_stop_half_way_are_asked_for_again(
    make_cache: MakeCache, proxy: FaultyProxy, spec: ModelSpec, weights: bytes
) -> None:
    proxy.fault = Once(Fault(stall_at=1000), times=2)
    assert fetch(make_cache(read_timeout_s=3), spec) == weights
    assert len(proxy.ranges(WEIGHTS)) >= 3 * (SPANS - 1)


def test_range_goes_on_where_it_broke_off(
    cache: DiskCache, proxy: FaultyProxy, spec: ModelSpec, weights: bytes
) -> None:
    proxy.fault = Once(Fault(cut_at=1_000_000))
    assert fetch(cache, spec) == weights
    starts = {each.range[0] for each in proxy.ranges(WEIGHTS) if each.range}
    assert {1_000_000, SPAN_BYTES + 1_000_000} <= starts


@pytest.mark.parametrize(
    ("status", "kind"),
    [pytest.param(403, StorageFailed, id="403"), pytest.param(404, ModelChanged, id="404")],
)
def test_refusal_mid_way_is_told_and_not_tried_again(
    cache: DiskCache, proxy: FaultyProxy, spec: ModelSpec, status: int, kind: type[LoadFailed]
) -> None:
    proxy.fault = lambda asked: Fault(status=status) if last_span(asked) else None
    with pytest.raises(kind, match=f"{WEIGHTS}: {status} Injected{status}"):
        fetch(cache, spec)
    assert sum(map(last_span, proxy.asked)) == 1
    assert visible(cache, spec) == {"config.json"}


@pytest.mark.slow
def test_server_that_always_fails_is_given_up(
    cache: DiskCache, proxy: FaultyProxy, spec: ModelSpec
) -> None:
    proxy.fault = lambda asked: Fault(status=500) if last_span(asked) else None
    with pytest.raises(StorageFailed, match=r"6 times in a row.*500 Injected500"):
        fetch(cache, spec)
    assert sum(map(last_span, proxy.asked)) == 6
    assert visible(cache, spec) == {"config.json"}


def test_next_try_asks_only_for_what_is_missing(
    cache: DiskCache,
    make_cache: MakeCache,
    proxy: FaultyProxy,
    spec: ModelSpec,
    weights: bytes,
) -> None:
    folder = cache.folder_of(spec.key).parent

    def refuse_when_some_is_here(asked: Asked) -> Fault | None:
        if not last_span(asked):
            return None
        servers.wait_until(lambda: bool(noted_spans(folder)), what="a span is here")
        return Fault(status=403)

    proxy.fault = refuse_when_some_is_here
    with pytest.raises(StorageFailed):
        fetch(cache, spec)
    here = noted_bytes(folder)
    assert here
    proxy.fault = lambda _: None
    proxy.asked.clear()
    assert fetch(make_cache(), spec) == weights
    assert asked_bytes(proxy) == SIZE - here


def test_range_that_another_ones_error_ended_goes_on_where_it_was(
    cache: DiskCache,
    make_cache: MakeCache,
    proxy: FaultyProxy,
    spec: ModelSpec,
    weights: bytes,
) -> None:
    folder, refused = cache.folder_of(spec.key).parent, threading.Event()
    cut = 1_000_000

    def cut_the_first_and_refuse_the_last(asked: Asked) -> Fault | None:
        if asked.range is None or not asked.path.endswith(WEIGHTS):
            return None
        if asked.range[0] == 0:
            return Fault(cut_at=cut)
        if asked.range[0] == cut:
            return Fault(until=refused, status=500)
        if not last_span(asked):
            return None
        servers.wait_until(lambda: bool(noted_spans(folder)), what="a span is here")
        refused.set()
        return Fault(status=403)

    proxy.fault = cut_the_first_and_refuse_the_last
    with pytest.raises(StorageFailed):
        fetch(cache, spec)
    proxy.fault = lambda _: None
    proxy.asked.clear()
    assert fetch(make_cache(), spec) == weights
    assert (cut, SPAN_BYTES - 1) in {each.range for each in proxy.ranges(WEIGHTS)}


def test_object_replaced_mid_way_is_noticed(
    cache: DiskCache,
    proxy: FaultyProxy,
    spec: ModelSpec,
    weights: bytes,
    client: S3Client,
) -> None:
    prefix = spec.storage_uri.removeprefix(f"s3://{BUCKET}/")
    other = weights[::-1]

    def replace(asked: Asked) -> None:
        if last_span(asked) and sum(map(last_span, proxy.asked)) == 1:
            client.put_object(Bucket=BUCKET, Key=f"{prefix}/{WEIGHTS}", Body=other)

    proxy.fault = replace
    with pytest.raises(ModelChanged, match="replaced"):
        fetch(cache, spec)
    assert visible(cache, spec) == {"config.json"}
    proxy.fault = lambda _: None
    cache.discard(spec.key)  # as the load that failed does
    assert fetch(cache, spec) == other


def test_object_replaced_before_its_weights_are_fetched_is_noticed(
    cache: DiskCache, spec: ModelSpec, weights: bytes, client: S3Client
) -> None:
    cache.fetch_assets(spec)
    prefix = spec.storage_uri.removeprefix(f"s3://{BUCKET}/")
    client.put_object(Bucket=BUCKET, Key=f"{prefix}/{WEIGHTS}", Body=weights[::-1])
    with pytest.raises(ModelChanged, match="replaced"):
        cache.fetch_weights(spec)


def test_bytes_that_do_not_match_s3s_checksum_are_refused(
    cache: DiskCache, proxy: FaultyProxy, spec: ModelSpec
) -> None:
    proxy.fault = Once(Fault(flip=1000))
    with pytest.raises(ModelChanged, match="does not have the CRC32 that S3 keeps"):
        fetch(cache, spec)
    assert visible(cache, spec) == {"config.json"}
    assert not list(cache.folder_of(spec.key).rglob("*.part*"))


@pytest.mark.slow
def test_slow_server_is_asked_for_more_at_once(
    cache: DiskCache, proxy: FaultyProxy, spec: ModelSpec, weights: bytes
) -> None:
    def slow(asked: Asked) -> Fault | None:
        """The second and the last span take their time, so that three are read at once."""
        if asked.range is None or not asked.path.endswith(WEIGHTS):
            return None
        rates = {SPAN_BYTES: SPAN_BYTES / 3, SIZE - 1234: 1000}
        return Fault(bytes_per_s=rates.get(asked.range[0], 4 * SPAN_BYTES))

    proxy.fault = slow
    assert fetch(cache, spec) == weights
    assert proxy.most_at_once >= 3


def test_missing_object_and_bucket_are_told(cache: DiskCache, spec: ModelSpec) -> None:
    for uri in (f"{spec.storage_uri}-not", "s3://no-such-bucket/m"):
        with pytest.raises(StorageFailed, match=r"does not exist|cannot be listed"):
            cache.fetch_assets(ModelSpec(ModelName("default", "m"), uri))


def test_key_that_leads_out_of_its_folder_is_refused(
    cache: DiskCache, spec: ModelSpec, client: S3Client
) -> None:
    prefix = spec.storage_uri.removeprefix(f"s3://{BUCKET}/")
    client.put_object(Bucket=BUCKET, Key=f"{prefix}/a\\..\\config.json", Body=b"{}")
    with pytest.raises(ModelInvalid, match="outside its folder"):
        cache.fetch_assets(spec)
    assert cache.keys() == set()


def test_server_that_answers_ranges_with_200_and_heeds_no_etag(
    spec: ModelSpec, weights: bytes, tmp_path: Path
) -> None:
    """The object store of the one-machine platform."""
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
            lambda: httpx.get(f"http://127.0.0.1:{port}/", trust_env=False, verify=False),
            what="rclone answers",
        )
        cache = DiskCache(tmp_path / "cache", storages, Bandwidth(None))
        assert fetch(cache, ModelSpec(spec.name, f"s3://{BUCKET}/m")) == weights
    finally:
        storages.close()
        servers.end_process(store)


def test_closed_cache_ends_its_downloads_and_its_waits_and_keeps_what_has_come(
    make_cache: MakeCache, proxy: FaultyProxy, spec: ModelSpec, weights: bytes
) -> None:
    first, second, third = make_cache(), make_cache(), make_cache()
    slow = Fault(bytes_per_s=SPAN_BYTES / 10)
    proxy.fault = lambda asked: slow if asked.range and asked.range[0] else None
    first.fetch_assets(spec)
    with ThreadPoolExecutor(2) as threads:
        loading = threads.submit(first.fetch_weights, spec)
        folder = first.folder_of(spec.key).parent
        servers.wait_until(lambda: noted_spans(folder), what="a span is here")
        waiting = threads.submit(second.fetch_weights, spec)
        for cache in (second, first):
            cache.close()
        for fetching in (waiting, loading):
            with pytest.raises(StorageFailed, match="shuts down"):
                fetching.result(timeout=60)
    here = noted_bytes(folder)
    proxy.fault = lambda _: None
    proxy.asked.clear()
    assert fetch(third, spec) == weights
    assert asked_bytes(proxy) == SIZE - here < SIZE


# Several processes


def test_proxy_of_the_environment_carries_the_bytes_too(
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
            *(sys.executable, "-m", "tests.runtime.fetch_in_process"),
            *(str(folder), spec.storage_uri, *map(str, limits)),
        ],
        cwd=servers.REPOSITORY,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
    )


def end(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    out, _ = process.communicate(timeout=60)
    return process.returncode, out.decode()


def test_processes_that_want_one_model_share_one_download(
    proxy: FaultyProxy,
    spec: ModelSpec,
    weights: bytes,
    tmp_path: Path,
    make_cache: MakeCache,
) -> None:
    proxy.fault = lambda asked: Fault(bytes_per_s=2 * SPAN_BYTES) if asked.range else None
    fetches = [start_fetch(proxy.environment, spec, tmp_path / "cache") for _ in range(3)]
    assert [end(each) for each in fetches] == [(0, "")] * 3
    assert len(proxy.ranges(WEIGHTS)) == SPANS
    assert len(proxy.ranges("config.json")) == 1
    assert fetch(make_cache(), spec) == weights
    assert len(proxy.ranges(WEIGHTS)) == SPANS


def test_another_process_takes_over_from_one_that_was_killed(
    proxy: FaultyProxy, spec: ModelSpec, weights: bytes, tmp_path: Path
) -> None:
    slow = Fault(bytes_per_s=SPAN_BYTES)
    proxy.fault = lambda asked: slow if asked.range and not last_span(asked) else None
    folder = tmp_path / "cache"
    first = start_fetch(proxy.environment, spec, folder)
    servers.wait_until(lambda: len(noted_spans(folder)) >= 1, what="a span is here")
    second = start_fetch(proxy.environment, spec, folder)
    servers.wait_until(lambda: len(list(folder.glob(".locks/*.fetch"))) == 1)
    first.kill()
    first.wait()
    here = noted_spans(folder)
    assert not list(folder.glob(f"*/{WEIGHTS}"))
    asked_before = len(proxy.ranges(WEIGHTS))
    proxy.fault = lambda _: None
    assert end(second) == (0, "")
    begun = {json.loads(line)[0] for line in here}
    asked_after = {asked.range[0] for asked in proxy.ranges(WEIGHTS)[asked_before:] if asked.range}
    assert not begun & asked_after  # what was here is not fetched again
    (path,) = folder.glob(f"*/{WEIGHTS}")
    assert path.read_bytes() == weights
    assert first.stdout is not None
    first.stdout.close()


def noted_bytes(folder: Path) -> int:
    """Bytes that the journal says are here."""
    spans = [json.loads(line) for line in noted_spans(folder)]
    return sum(end - start for start, end, _ in spans)


def asked_bytes(proxy: FaultyProxy) -> int:
    """Bytes of the weights that were asked for."""
    ranges = [each.range for each in proxy.ranges(WEIGHTS) if each.range]
    return sum(last + 1 - first for first, last in ranges)


def noted_spans(folder: Path) -> list[str]:
    """The lines of the journal beyond its head."""
    journals = list(folder.glob(f"*/{WEIGHTS}.part.spans"))
    return journals[0].read_text().splitlines()[1:] if journals else []


def test_file_that_cannot_be_written_fails_cleanly(
    proxy: FaultyProxy, spec: ModelSpec, tmp_path: Path
) -> None:
    folder = tmp_path / "cache"
    status, out = end(start_fetch(proxy.environment, spec, folder, SIZE // 2))
    assert status == 3
    assert out.startswith("DiskFull: ")
    assert str(SIZE) in out
    assert not list(folder.rglob("*.part*"))
    assert not proxy.ranges(WEIGHTS)  # it is known before the first byte


def visible(cache: DiskCache, spec: ModelSpec) -> set[str]:
    """The files under their own names."""
    folder = cache.folder_of(spec.key)
    names = (path.name for path in folder.iterdir() if not path.name.startswith("."))
    return {name for name in names if ".part" not in name}
