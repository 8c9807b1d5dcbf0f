"""Loads that nobody waits for any more, and loads of models that are unloaded meanwhile."""

import asyncio
import time
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.applications import Starlette
from starlette.types import Message, Scope

from registry.domain.model import ModelSpec, Tier
from registry.domain.pod_state import ANY_COPIES
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from runtime.errors import DeadlinePassed, LoadCancelled, ModelInUse, ModelNotFound
from runtime.protocols.routes import Routes
from runtime.serving.in_flight import InFlightRequests, StepQueue
from runtime.serving.repository import ModelCatalog, Repository
from tests import servers
from tests.runtime.fake_engine import FakeEngine
from tests.runtime.large_models import (
    SPANS,
    GatedStore,
    assert_nothing_is_held,
    gated_pod,
    staged,
    two_spans,
    until,
)
from tests.runtime.local_pod import LocalPod


async def leave(waiting: asyncio.Task[object]) -> None:
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_load_that_has_brought_nothing_ends_with_its_last_waiter(
    gated_store: GatedStore, large_spec: ModelSpec, tmp_path: Path
) -> None:
    engine = FakeEngine()
    gated_store.from_span = 0

    async with gated_pod(tmp_path, gated_store, memory=staged(engine)) as pod:
        first, second = (asyncio.create_task(pod.coordinator.acquire(large_spec)) for _ in range(2))
        await until(lambda: len(gated_store.starts()) >= 2, "the weights are asked for")
        await leave(first)
        assert pod.coordinator.is_loading(large_spec.key)
        await leave(second)
        await until(lambda: not pod.coordinator.is_loading(large_spec.key), "the load is over")
        assert not gated_store.open.is_set()
        assert_nothing_is_held(pod, large_spec, engine)


async def test_deadline_that_passes_counts_as_leaving(
    gated_store: GatedStore, large_spec: ModelSpec, tmp_path: Path
) -> None:
    gated_store.from_span = 0

    async with gated_pod(tmp_path, gated_store) as pod:
        with pytest.raises(DeadlinePassed):
            await pod.coordinator.acquire(large_spec, deadline_s=time.monotonic() + 0.05)
        await until(lambda: not pod.coordinator.is_loading(large_spec.key), "the load is over")


async def test_request_that_comes_while_a_load_is_given_up_loads_anew(
    gated_store: GatedStore, large_spec: ModelSpec, tmp_path: Path
) -> None:
    gated_store.from_span = 0

    async with gated_pod(tmp_path, gated_store) as pod:
        first = asyncio.create_task(pod.coordinator.acquire(large_spec))
        await until(lambda: len(gated_store.starts()) >= 2, "the weights are asked for")
        first.cancel()
        second = asyncio.create_task(pod.coordinator.acquire(large_spec))
        await asyncio.wait({first})
        gated_store.open.set()
        async with asyncio.timeout(60):
            (await second).release()


async def test_download_that_has_begun_goes_on_as_a_preload_and_can_be_joined(
    gated_store: GatedStore, large_spec: ModelSpec, tmp_path: Path
) -> None:
    engine = FakeEngine()

    async with gated_pod(tmp_path, gated_store, memory=staged(engine)) as pod:
        first = asyncio.create_task(pod.coordinator.acquire(large_spec))
        await two_spans(pod, large_spec)
        ticket = pod.coordinator.loads.running[large_spec.key].ticket
        assert ticket.is_urgent
        await leave(first)
        assert pod.coordinator.is_loading(large_spec.key)
        assert not ticket.is_urgent
        second = asyncio.create_task(pod.coordinator.acquire(large_spec))
        await until(lambda: ticket.is_urgent, "it is urgent again")
        gated_store.open.set()
        (await second).release()
        assert len(gated_store.starts()) == SPANS


async def test_preload_goes_on_when_a_request_that_joined_it_leaves(
    gated_store: GatedStore, large_spec: ModelSpec, tmp_path: Path
) -> None:
    gated_store.from_span = 0

    async with gated_pod(tmp_path, gated_store) as pod:
        preload = asyncio.create_task(pod.coordinator.preload(large_spec, ANY_COPIES))
        await until(lambda: len(gated_store.starts()) >= 2, "the weights are asked for")
        ticket = pod.coordinator.loads.running[large_spec.key].ticket
        assert not ticket.is_urgent
        joined = asyncio.create_task(pod.coordinator.acquire(large_spec))
        await until(lambda: ticket.is_urgent, "somebody waits")
        await leave(joined)
        assert not ticket.is_urgent
        gated_store.open.set()
        await preload
        assert pod.loader.store.holds(large_spec.key)


@pytest.mark.parametrize("from_span", [0, 1, 2])
async def test_unloading_a_model_that_is_loaded_gives_everything_back(
    gated_store: GatedStore, large_spec: ModelSpec, tmp_path: Path, from_span: int
) -> None:
    engine = FakeEngine()
    gated_store.from_span = from_span

    async with gated_pod(tmp_path, gated_store, memory=staged(engine)) as pod:
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
        (await pod.coordinator.acquire(large_spec)).release()
        assert gated_store.starts().count(0) == 2  # nothing was left of the first download


async def test_load_that_waits_for_room_ends_with_its_last_waiter(
    gated_store: GatedStore, large_spec: ModelSpec, tmp_path: Path
) -> None:
    gated_store.open.set()

    async with gated_pod(tmp_path, gated_store) as pod:
        store = pod.loader.store
        await pod.coordinator.preload(large_spec, ANY_COPIES, Tier.DISK)
        assert store.try_reserve("other", 1 << 30)
        waiting = asyncio.create_task(pod.coordinator.acquire(large_spec))
        await until(lambda: bool(store._waits), "it waits for room")
        await leave(waiting)
        await until(lambda: not pod.coordinator.is_loading(large_spec.key), "the load is over")
        store.cancel_reservation("other")
        assert store.reserved_bytes == 0
        (await pod.coordinator.acquire(large_spec)).release()


async def test_pod_that_waits_for_anothers_download_stops_waiting_when_it_is_told(
    gated_store: GatedStore, large_spec: ModelSpec, tmp_path: Path
) -> None:
    async with gated_pod(tmp_path, gated_store) as pod:
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


async def test_a_model_that_the_copy_of_the_registry_lacks_yet_can_be_unloaded(
    redis: servers.RedisServer, gated_store: GatedStore, large_spec: ModelSpec, tmp_path: Path
) -> None:
    engine = FakeEngine()
    gated_store.from_span = 0
    name = large_spec.name.path_segment

    async with gated_pod(tmp_path, gated_store, memory=staged(engine)) as pod:
        registry = await Registry.connect(redis.url, "of-new-models")
        repository = _repository(registry, pod)
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


async def test_an_unload_that_failed_or_is_overtaken_by_a_load_removes_nothing_later(
    redis: servers.RedisServer,
    gated_store: GatedStore,
    large_spec: ModelSpec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runtime.serving.repository.UNLOAD_TIMEOUT_S", 0.2)
    gated_store.open.set()
    name = large_spec.name.path_segment

    async with gated_pod(tmp_path, gated_store) as pod:
        registry = await Registry.connect(redis.url, "of-used-models")
        repository = _repository(registry, pod)
        try:
            await registry.put_models([large_spec])
            used = await pod.coordinator.acquire(large_spec)
            with pytest.raises(ModelInUse):
                await repository.unload(name)
            used.release()
            used = await pod.coordinator.acquire(large_spec)
            assert used.start == "warm"
            unloading = asyncio.create_task(repository.unload(name))
            await until(lambda: used.entry.retire_reason is not None, "it is to be removed")
            await pod.coordinator.preload(large_spec, ANY_COPIES)
            used.release()
            assert pod.loader.store.holds(large_spec.key)
            with pytest.raises(ModelInUse):
                await unloading
        finally:
            await registry.close()


async def test_a_withdrawable_load_ends_with_the_connection_of_its_client(
    redis: servers.RedisServer, gated_store: GatedStore, large_spec: ModelSpec, tmp_path: Path
) -> None:
    gated_store.from_span = 0
    leaving = asyncio.Event()
    body = orjson.dumps({"parameters": {"withdrawable": True}})
    received: list[Message] = [{"type": "http.request", "body": body}]
    sent: list[Message] = []

    async def receive() -> Message:
        if not received:
            await leaving.wait()
            return {"type": "http.disconnect"}
        return received.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    async with gated_pod(tmp_path, gated_store) as pod:
        registry = await Registry.connect(redis.url, "of-withdrawn-loads")
        try:
            await registry.put_models([large_spec])
            absent: Any = None
            routes = Routes(absent, _repository(registry, pod), absent, 1)
            scope: Scope = {
                "type": "http",
                "method": "POST",
                "headers": [],
                "query_string": b"",
                "path": f"/v2/repository/models/{large_spec.name.path_segment}/load",
            }
            loading = asyncio.create_task(Starlette(routes=routes.table())(scope, receive, send))
            await until(lambda: len(gated_store.starts()) >= 2, "the weights are asked for")
            leaving.set()
            await loading
            await until(lambda: not pod.coordinator.is_loading(large_spec.key), "the load is over")
            assert sent[0]["status"] == 400
            assert not gated_store.open.is_set()
        finally:
            await registry.close()


def _repository(registry: Registry, pod: LocalPod) -> Repository:
    return Repository(
        ModelCatalog(ClusterWatch(registry), registry),
        pod.coordinator,
        pod.loader.store,
        pod.loader.resolver.processors,
        InFlightRequests("pod", slots=1, step_queue=StepQueue(1)),
    )
