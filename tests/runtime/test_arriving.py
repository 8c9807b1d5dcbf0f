"""Weights on their way: what is done before the last byte, and that faults leave nothing behind."""

import asyncio
import gc
import json
from pathlib import Path

import pytest

from registry.domain.model import ModelSpec, Tier
from runtime.errors import LoadCancelled, ModelChanged, ModelInvalid, StorageFailed
from runtime.storage.partial_file import SPAN_BYTES
from tests.runtime.fake_engine import FakeEngine
from tests.runtime.faulty_proxy import Fault, ProxiedRequest
from tests.runtime.large_models import (
    SPANS,
    WEIGHTS,
    GatedStore,
    assert_nothing_is_held,
    gated_pod,
    make_large,
    put_model,
    staged,
    two_spans,
    until,
    visible,
)
from tests.runtime.local_pod import local_pod, spec_of
from tests.servers import S3Server, copy_model


async def answer_of(folder: Path, model: Path) -> list[bytes]:
    """What the model answers when it is loaded from whole files."""
    async with local_pod(folder) as plain:
        await plain.load(spec_of("plain", model))
        return await plain.answer(spec_of("plain", model))


async def test_device_has_nothing_before_the_download_has_ended(
    gated_store: GatedStore, large_spec: ModelSpec, large: Path, tmp_path: Path
) -> None:
    engine = FakeEngine()

    async with gated_pod(tmp_path, gated_store, memory=staged(engine)) as pod:
        loading = asyncio.create_task(pod.load(large_spec))
        await two_spans(pod, large_spec)
        assert not loading.done()
        assert engine.allocated_bytes == 0
        assert not visible(pod, large_spec)
        assert not pod.loader.store.holds(large_spec.key)
        gated_store.open.set()
        assert await loading is Tier.REMOTE
        assert visible(pod, large_spec) == {WEIGHTS}
        assert await pod.answer(large_spec) == await answer_of(tmp_path / "plain", large)
    assert engine.spoiled == []
    assert gated_store.starts() == [number * SPAN_BYTES for number in range(SPANS)]


async def test_cpu_pod_has_room_tokenizer_and_answers_when_all_is_here(
    gated_store: GatedStore, large_spec: ModelSpec, large: Path, tmp_path: Path
) -> None:
    async with gated_pod(tmp_path, gated_store) as pod:
        loading = asyncio.create_task(pod.load(large_spec))
        size = (large / WEIGHTS).stat().st_size
        await until(lambda: pod.loader.store.reserved_bytes > size - SPAN_BYTES, "room is kept")
        await until(
            lambda: pod.loader.resolver.processors.has(large_spec.key), "the tokenizer is here"
        )
        assert not loading.done()
        gated_store.open.set()
        await loading
        assert await pod.answer(large_spec) == await answer_of(tmp_path / "plain", large)


@pytest.mark.parametrize("kind", ["cpu", "staged"])
async def test_weights_that_do_not_fit_are_refused_before_they_have_come(
    gated_store: GatedStore, s3: S3Server, large: Path, tmp_path: Path, kind: str
) -> None:
    """The skeleton is built while the weights come."""
    folder = make_large(large, tmp_path / "wrong")
    config = json.loads((folder / "config.json").read_text())
    config["intermediate_size"] *= 2
    (folder / "config.json").write_text(json.dumps(config))
    wrong = put_model(s3, folder, f"wrong-{kind}")
    engine = FakeEngine()

    async with gated_pod(
        tmp_path / kind, gated_store, memory=staged(engine) if kind == "staged" else None
    ) as pod:
        with pytest.raises(ModelInvalid, match="do not fit"):
            await asyncio.wait_for(pod.load(wrong), 60)
        assert not gated_store.open.is_set()
        assert_nothing_is_held(pod, wrong, engine)


async def test_header_that_is_wrong_is_told_while_the_tokenizer_is_still_read(
    gated_store: GatedStore, s3: S3Server, large: Path, tmp_path: Path
) -> None:
    folder = copy_model(large, tmp_path / "cut")
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:-1000])
    cut = put_model(s3, folder, "cut")

    async with gated_pod(tmp_path, gated_store) as pod:
        processors = pod.loader.resolver.processors
        await processors.folder(cut)
        reading = asyncio.get_running_loop().create_future()
        processors._builds._running[cut.key] = reading  # it takes as long as the test likes
        with pytest.raises(ModelInvalid, match="truncated"):
            await asyncio.wait_for(pod.load(cut), 60)
        reading.cancel()


def last_span(request: ProxiedRequest) -> bool:
    return request.range is not None and request.range[0] >= (SPANS - 1) * SPAN_BYTES


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        pytest.param(Fault(status=403), StorageFailed, id="refused"),
        pytest.param(Fault(flip=5), ModelChanged, id="checksum"),
        pytest.param(Fault(status=412), ModelChanged, id="replaced"),
    ],
)
async def test_download_that_fails_at_its_end_gives_all_memory_back(
    gated_store: GatedStore,
    large_spec: ModelSpec,
    tmp_path: Path,
    fault: Fault,
    error: type[Exception],
) -> None:
    engine = FakeEngine()
    gated_store.fault = lambda request: fault if last_span(request) else None

    async with gated_pod(tmp_path, gated_store, memory=staged(engine)) as pod:
        loading = asyncio.create_task(pod.load(large_spec))
        await two_spans(pod, large_spec)
        gc.disable()  # nothing may wait for it
        try:
            gated_store.open.set()
            with pytest.raises(error):
                await loading
            del loading
            assert_nothing_is_held(pod, large_spec, engine)
        finally:
            gc.enable()
        gated_store.fault = lambda _: None
        await pod.load(large_spec)
        await pod.answer(large_spec)


async def test_part_of_a_file_is_adopted_by_the_next_load(
    gated_store: GatedStore, large_spec: ModelSpec, large: Path, tmp_path: Path
) -> None:
    engine = FakeEngine()

    async with gated_pod(tmp_path, gated_store, memory=staged(engine)) as pod:
        first = asyncio.create_task(pod.load(large_spec))
        await two_spans(pod, large_spec)
        await until(lambda: len(gated_store.starts()) == SPANS, "the last one is asked for")
        pod.coordinator.loads.running[large_spec.key].ticket.cancel("of the test")
        with pytest.raises(LoadCancelled):
            await asyncio.wait_for(first, 60)  # it does not wait for the answer that is held
        assert_nothing_is_held(pod, large_spec, engine)
        request = len(gated_store.starts())
        second = asyncio.create_task(pod.load(large_spec))
        await until(lambda: len(gated_store.starts()) > request, "the rest is asked for")
        assert not second.done()
        gated_store.open.set()
        await second
        assert len(gated_store.starts()) == request + 1  # the last span, and nothing twice
        assert await pod.answer(large_spec) == await answer_of(tmp_path / "plain", large)


async def test_pod_that_waits_for_anothers_download_has_the_weights_with_it(
    gated_store: GatedStore, large_spec: ModelSpec, tmp_path: Path
) -> None:
    engine = FakeEngine()

    async with gated_pod(tmp_path, gated_store, memory=staged(engine)) as pod:
        cache = pod.loader.resolver.cache.folder_of(large_spec.key).parent
        environment = gated_store.proxy.environment
        async with local_pod(
            tmp_path / "other", cache_folder=cache, environment=environment
        ) as other:
            first = asyncio.create_task(pod.load(large_spec))
            await until(lambda: len(gated_store.starts()) == SPANS, "the last span is asked for")
            second = asyncio.create_task(other.load(large_spec))
            await until(lambda: other.loader.resolver.processors.has(large_spec.key), "it waits")
            assert not second.done()
            gated_store.open.set()
            await asyncio.gather(first, second)
            assert await pod.answer(large_spec) == await other.answer(large_spec)
        assert len(gated_store.starts()) == SPANS


async def test_waiting_pod_goes_on_where_a_cancelled_download_stopped(
    gated_store: GatedStore, large_spec: ModelSpec, tmp_path: Path
) -> None:
    engine = FakeEngine()

    async with gated_pod(tmp_path, gated_store) as pod:
        cache = pod.loader.resolver.cache.folder_of(large_spec.key).parent
        environment = gated_store.proxy.environment
        async with local_pod(
            tmp_path / "other", cache_folder=cache, environment=environment, memory=staged(engine)
        ) as other:
            first = asyncio.create_task(pod.load(large_spec))
            await two_spans(pod, large_spec)
            await until(lambda: len(gated_store.starts()) == SPANS, "the last one is asked for")
            second = asyncio.create_task(other.load(large_spec))
            await until(lambda: other.loader.resolver.processors.has(large_spec.key), "it waits")
            pod.coordinator.loads.running[large_spec.key].ticket.cancel("of the test")
            with pytest.raises(LoadCancelled):
                await first
            await until(
                lambda: len(gated_store.starts()) == SPANS + 1, "the other asks for the rest"
            )
            gated_store.open.set()
            await second
            assert gated_store.starts().count((SPANS - 1) * SPAN_BYTES) == 2
            await other.answer(large_spec)
