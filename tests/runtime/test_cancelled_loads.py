"""Loads that nobody waits for any more, and loads of models that are unloaded meanwhile."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from registry.domain.model import Tier
from registry.domain.reservation import ANY_COPIES
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from runtime.errors import DeadlinePassed, LoadCancelled, ModelNotFound
from runtime.loading.load import should_continue
from runtime.registration.model_catalog import ModelCatalog
from runtime.serving.in_flight import InFlightRequests
from runtime.serving.repository import Repository
from runtime.serving.step_queue import StepQueue
from runtime.storage.load_ticket import LoadProgress
from runtime.storage.partial_file import SPAN_BYTES
from tests.runtime.fake_engine import FakeEngine
from tests.runtime.large_models import (
    SPANS,
    GatedStore,
    assert_nothing_is_held,
    run,
    staged,
    until,
)

if TYPE_CHECKING:
    from pathlib import Path

    from registry.domain.model import ModelSpec
    from tests import servers
    from tests.runtime.local_pod import LocalPod

COPIES = 7
"""Parts that the first two spans are good for."""


@pytest.mark.parametrize(
    ("progress", "ends_downloads", "expected"),
    [
        pytest.param(LoadProgress(), False, False, id="nothing-has-come"),
        pytest.param(LoadProgress(False, 0, 100), False, False, id="download-has-brought-nothing"),
        pytest.param(LoadProgress(False, 90, 100), True, False, id="only-an-earlier-download-has"),
        pytest.param(LoadProgress(True, 1, 100), False, True, id="bytes-come"),
        pytest.param(LoadProgress(True, 1, 100), True, False, id="bytes-come-but-ends"),
        pytest.param(LoadProgress(True, 79, 100), True, False, id="not-nearly-done"),
        pytest.param(LoadProgress(True, 80, 100), True, True, id="nearly-done"),
        pytest.param(LoadProgress(True, 0, 0), True, True, id="from-this-node"),
    ],
)
def test_rule(progress: LoadProgress, *, ends_downloads: bool, expected: bool) -> None:
    assert should_continue(progress, ends_downloads=ends_downloads) is expected


async def two_spans(engine: FakeEngine, copies: int = COPIES) -> None:
    await until(lambda: len(engine.done_order) == copies, "two spans are on the device")


async def leave(waiting: asyncio.Task[object]) -> None:
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_load_that_has_brought_nothing_ends_with_its_last_waiter(
    gated_store: GatedStore, large_spec: ModelSpec, tmp_path: Path
) -> None:
    engine = FakeEngine()
    gated_store.from_span = 0

    async def work(pod: LocalPod) -> None:
        first, second = (asyncio.create_task(pod.coordinator.acquire(large_spec)) for _ in range(2))
        await until(lambda: len(gated_store.starts()) >= 2, "the weights are asked for")
        await leave(first)
        assert pod.coordinator.is_loading(large_spec.key)
        await leave(second)
        await until(lambda: not pod.coordinator.is_loading(large_spec.key), "the load is over")
        assert not gated_store.open.is_set()
        assert_nothing_is_held(pod, large_spec, engine)

    run(tmp_path, gated_store, work, memory=staged(engine))


def test_deadline_that_passes_counts_as_leaving(
    gated_store: GatedStore, large_spec: ModelSpec, tmp_path: Path
) -> None:
    gated_store.from_span = 0

    async def work(pod: LocalPod) -> None:
        with pytest.raises(DeadlinePassed):
            await pod.coordinator.acquire(large_spec, deadline_s=time.monotonic() + 0.05)
        await until(lambda: not pod.coordinator.is_loading(large_spec.key), "the load is over")

    run(tmp_path, gated_store, work)


def test_request_that_comes_while_a_load_is_given_up_loads_anew(
    gated_store: GatedStore, large_spec: ModelSpec, tmp_path: Path
) -> None:
    gated_store.from_span = 0

    async def work(pod: LocalPod) -> None:
        first = asyncio.create_task(pod.coordinator.acquire(large_spec))
        await until(lambda: len(gated_store.starts()) >= 2, "the weights are asked for")
        first.cancel()
        second = asyncio.create_task(pod.coordinator.acquire(large_spec))
        await asyncio.wait({first})
        gated_store.open.set()
        async with asyncio.timeout(60):
            pod.coordinator.release(await second)

    run(tmp_path, gated_store, work)


def test_download_that_has_begun_goes_on_as_a_preload_and_can_be_joined(
    gated_store: GatedStore, large_spec: ModelSpec, tmp_path: Path
) -> None:
    engine = FakeEngine()

    async def work(pod: LocalPod) -> None:
        first = asyncio.create_task(pod.coordinator.acquire(large_spec))
        await two_spans(engine)
        ticket = pod.coordinator.running[large_spec.key].ticket
        assert ticket.is_urgent
        await leave(first)
        assert pod.coordinator.is_loading(large_spec.key)
        assert not ticket.is_urgent
        second = asyncio.create_task(pod.coordinator.acquire(large_spec))
        await until(lambda: ticket.is_urgent, "it is urgent again")
        gated_store.open.set()
        pod.coordinator.release(await second)
        assert len(gated_store.starts()) == SPANS

    run(tmp_path, gated_store, work, memory=staged(engine))


def test_download_ends_half_way_where_the_pod_is_told_so(
    gated_store: GatedStore, large_spec: ModelSpec, tmp_path: Path
) -> None:
    engine = FakeEngine()

    async def work(pod: LocalPod) -> None:
        first = asyncio.create_task(pod.coordinator.acquire(large_spec))
        await until(lambda: bool(engine.done_order), "a span is on the device")
        await leave(first)
        await until(lambda: not pod.coordinator.is_loading(large_spec.key), "the load is over")
        assert_nothing_is_held(pod, large_spec, engine)
        gated_store.open.set()
        request = gated_store.starts()
        pod.coordinator.release(await pod.coordinator.acquire(large_spec))
        assert gated_store.starts().count(0) == request.count(0) == 1  # what had come, stayed

    gated_store.from_span = 1
    run(tmp_path, gated_store, work, memory=staged(engine), ends_downloads=True)


def test_preload_goes_on_when_a_request_that_joined_it_leaves(
    gated_store: GatedStore, large_spec: ModelSpec, tmp_path: Path
) -> None:
    gated_store.from_span = 0

    async def work(pod: LocalPod) -> None:
        preload = asyncio.create_task(pod.coordinator.preload(large_spec, ANY_COPIES))
        await until(lambda: len(gated_store.starts()) >= 2, "the weights are asked for")
        ticket = pod.coordinator.running[large_spec.key].ticket
        assert not ticket.is_urgent
        joined = asyncio.create_task(pod.coordinator.acquire(large_spec))
        await until(lambda: ticket.is_urgent, "somebody waits")
        await leave(joined)
        assert not ticket.is_urgent
        gated_store.open.set()
        await preload
        assert pod.loader.store.holds(large_spec.key)

    run(tmp_path, gated_store, work)


@pytest.mark.parametrize("from_span", [0, 1, 2])
def test_unloading_a_model_that_is_loaded_gives_everything_back(
    gated_store: GatedStore, large_spec: ModelSpec, tmp_path: Path, from_span: int
) -> None:
    engine = FakeEngine()
    gated_store.from_span = from_span

    async def work(pod: LocalPod) -> None:
        waiting = asyncio.create_task(pod.coordinator.acquire(large_spec))
        preload = asyncio.create_task(pod.coordinator.preload(large_spec, ANY_COPIES))
        await until(
            lambda: len(gated_store.starts()) >= min(SPANS, from_span + 2), "it waits for bytes"
        )
        await pod.coordinator.cancel(large_spec.key, "it was unloaded")
        for each in (waiting, preload):
            with pytest.raises(LoadCancelled, match="it was unloaded"):
                await each
        assert_nothing_is_held(pod, large_spec, engine)
        cache = pod.loader.resolver.cache
        assert not list(cache.folder_of(large_spec.key).rglob("*.part*"))
        gated_store.open.set()
        pod.coordinator.release(await pod.coordinator.acquire(large_spec))
        assert gated_store.starts().count(0) == 2  # nothing was left of the first download

    run(tmp_path, gated_store, work, memory=staged(engine))


def test_load_that_waits_for_room_ends_with_its_last_waiter(
    gated_store: GatedStore, large_spec: ModelSpec, tmp_path: Path
) -> None:
    gated_store.open.set()

    async def work(pod: LocalPod) -> None:
        store = pod.loader.store
        await pod.coordinator.preload(large_spec, ANY_COPIES, Tier.DISK)
        assert store.try_reserve("other", 1 << 30)
        waiting = asyncio.create_task(pod.coordinator.acquire(large_spec))
        await until(lambda: bool(store._waits), "it waits for room")
        await leave(waiting)
        await until(lambda: not pod.coordinator.is_loading(large_spec.key), "the load is over")
        store.cancel_reservation("other")
        assert store.reserved_bytes == 0
        pod.coordinator.release(await pod.coordinator.acquire(large_spec))

    run(tmp_path, gated_store, work)


def test_pod_that_waits_for_anothers_download_stops_waiting_when_it_is_told(
    gated_store: GatedStore, large_spec: ModelSpec, tmp_path: Path
) -> None:
    async def work(pod: LocalPod) -> None:
        locks = pod.loader.resolver.cache._locks
        folder = pod.loader.resolver.cache.folder_of(large_spec.key)
        await pod.loader.resolver.processors.folder(large_spec)
        with locks.lock_for_download(folder.name):  # as another pod of the node
            waiting = asyncio.create_task(pod.coordinator.acquire(large_spec))
            await until(
                lambda: pod.loader.resolver.processors.has(large_spec.key), "it is under way"
            )
            await leave(waiting)
            await until(lambda: not pod.coordinator.is_loading(large_spec.key), "the load is over")
        assert gated_store.starts() == []

    run(tmp_path, gated_store, work)


def test_bytes_of_two_spans_are_what_the_tests_count() -> None:
    assert -(-2 * SPAN_BYTES // (2 * 1024**2)) - 1 == COPIES


def test_a_model_that_the_copy_of_the_registry_lacks_yet_can_be_unloaded(
    redis: servers.RedisServer, gated_store: GatedStore, large_spec: ModelSpec, tmp_path: Path
) -> None:
    engine = FakeEngine()
    gated_store.from_span = 0
    name = large_spec.name.path_segment

    async def work(pod: LocalPod) -> None:
        registry = await Registry.connect(redis.url, "of-new-models")
        repository = Repository(
            ModelCatalog(ClusterWatch(registry), registry), pod.coordinator, pod.loader.store,
            pod.loader.resolver.processors,
            InFlightRequests("pod", slots=1, step_queue=StepQueue(1)),
        )  # fmt: skip
        try:
            await registry.put_models([large_spec])
            assert not await repository.is_ready(name)
            waiting = asyncio.create_task(pod.coordinator.acquire(large_spec))
            await until(lambda: len(gated_store.starts()) >= 2, "the weights are asked for")
            await repository.unload(name)
            with pytest.raises(LoadCancelled, match="was unloaded"):
                await waiting
            assert_nothing_is_held(pod, large_spec, engine)
            for call in (repository.unload, repository.is_ready):
                with pytest.raises(ModelNotFound, match="other is not declared"):
                    await call("other")
        finally:
            await registry.close()

    run(tmp_path, gated_store, work, memory=staged(engine))
