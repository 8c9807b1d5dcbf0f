"""The engine on a device worker: sharing the device, failures, memory."""

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM, PreTrainedModel

from registry.domain.model import ModelPolicy
from runtime.device.queue import DeviceModel
from runtime.device.worker import DeviceWorker
from runtime.errors import InferenceFailed, ModelInvalid, NoRoomToInfer, PodDraining
from runtime.generation.engine import Sampling, TokenChunk
from runtime.generation.limits import GenerationLimits
from runtime.generation.transformers_engine import TransformersEngine
from tests.runtime.networks import load_network
from tests.servers import wait_until

LIMITS = GenerationLimits(cache_bytes=1 << 22, max_concurrent=8, max_new_tokens=900, timeout_s=60)
PROMPT = [260, 270, 280]
GREEDY = Sampling(max_tokens=30, seed=0, temperature=0)


@pytest.fixture
def network(models: Path) -> PreTrainedModel:
    return load_network(models / "tiny-gpt2")


def with_engine(
    network: PreTrainedModel,
    device: DeviceWorker,
    test: Callable[[TransformersEngine], Awaitable[None]],
    device_model: DeviceModel | None = None,
) -> None:
    async def run() -> None:
        loop, place = asyncio.get_running_loop(), device_model or DeviceModel()
        make = lambda: TransformersEngine(network, device, place, LIMITS, loop)  # noqa: E731  # one word
        engine = (await device.run(make)).value
        async with asyncio.timeout(60):
            await test(engine)
        engine.close()

    asyncio.run(run())


async def generate_tokens(engine: TransformersEngine, tokens: int, **sampling: Any) -> list[int]:
    """All tokens of one request."""
    ids: list[int] = []
    parameters = Sampling(max_tokens=tokens, **{"seed": 0, "temperature": 0.0, **sampling})
    async with aclosing(engine.generate(PROMPT, parameters)) as chunks:
        async for new in chunks:
            ids += new.token_ids
    return ids


def test_closed_engine_frees_its_cache_without_a_collection_of_garbage(
    network: PreTrainedModel, device: DeviceWorker
) -> None:
    """A collection takes as long as a load, and stops all threads."""
    kept: list[weakref.ref[Any]] = []

    async def test(engine: TransformersEngine) -> None:
        await generate_tokens(engine, 3)
        kept.append(weakref.ref(engine._processor.cache))
        gc.collect()
        gc.disable()
        collections = gc.get_stats()[2]["collections"]
        engine.close()
        assert gc.get_stats()[2]["collections"] == collections
        assert kept[0]() is None

    async def test_and_restore(engine: TransformersEngine) -> None:
        try:
            await test(engine)
        finally:
            gc.enable()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        make = partial(TransformersEngine, network, device, DeviceModel(), LIMITS, loop)
        await test_and_restore((await device.run(make)).value)

    asyncio.run(run())


@pytest.mark.parametrize("requests", [1, 8])
def test_the_device_does_not_wait_for_those_who_take_the_tokens(
    network: PreTrainedModel, device: DeviceWorker, requests: int
) -> None:
    begun: list[int] = []

    async def test(engine: TransformersEngine) -> None:
        others = [asyncio.create_task(generate_tokens(engine, 30)) for _ in range(requests - 1)]
        async with aclosing(engine.generate(PROMPT, GREEDY)) as chunks:
            async for _ in chunks:
                queued = [each for each in engine._steps if not each.is_running]
                # The event loop stands still until they have begun.
                wait_until(lambda: all(each.is_running for each in queued), what="the steps")  # noqa: B023
                begun.append(len(queued))
        await asyncio.gather(*others)

    with_engine(network, device, test)
    assert sum(begun) > 0


def test_no_step_uses_the_network_once_the_last_request_has_left(
    network: PreTrainedModel, device: DeviceWorker
) -> None:
    """Its memory may be given back then, whether it has left by itself or was cancelled twice."""
    steps: list[int] = []
    hook = network.register_forward_pre_hook(lambda *_: steps.append(0))

    async def test(engine: TransformersEngine) -> None:
        for count in (0, 1, 2):
            task = asyncio.create_task(generate_tokens(engine, 900 if count else 3))
            await asyncio.to_thread(wait_until, lambda: len(steps) >= 3, what="three steps")
            for _ in range(count):
                task.cancel()
                await asyncio.sleep(0)
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled() == bool(count)
            assert not engine._steps
            steps.clear()

    with_engine(network, device, test)
    hook.remove()


def test_a_broken_device_ends_all_texts_with_its_reason(
    network: PreTrainedModel, device: DeviceWorker
) -> None:
    async def test(engine: TransformersEngine) -> None:
        texts = [asyncio.create_task(generate_tokens(engine, 900)) for _ in range(3)]
        await asyncio.to_thread(wait_until, lambda: engine._steps, what="a step")
        device.mark_lost(RuntimeError("off the bus"))
        for each in await asyncio.gather(*texts, return_exceptions=True):
            assert isinstance(each, PodDraining)
            assert "off the bus" in str(each)

    with_engine(network, device, test)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param(RuntimeError("the device broke"), InferenceFailed, id="fault"),
        pytest.param(torch.OutOfMemoryError("the device broke"), NoRoomToInfer, id="no-room"),
    ],
)
def test_failed_step_ends_only_its_requests(
    network: PreTrainedModel, device: DeviceWorker, error: Exception, expected: type[Exception]
) -> None:
    left = [20]

    def fail_later(*_: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise error

    hook = network.register_forward_pre_hook(fail_later)

    async def test(engine: TransformersEngine) -> None:
        results = await asyncio.gather(
            generate_tokens(engine, 100),
            generate_tokens(engine, 50, seed=3),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [expected] * 2
        assert "the device broke" in str(results[0])
        assert len(await generate_tokens(engine, 30)) == 30

    with_engine(network, device, test)
    hook.remove()


def test_ended_and_cancelled_requests_free_their_pages(
    network: PreTrainedModel, device: DeviceWorker
) -> None:
    async def leave(engine: TransformersEngine) -> None:
        async with aclosing(engine.generate(PROMPT, Sampling(max_tokens=900, seed=1))) as chunks:
            await anext(chunks)

    async def test(engine: TransformersEngine) -> None:
        cache = engine._processor.cache
        for _ in range(40):
            await asyncio.gather(leave(engine), generate_tokens(engine, 5), leave(engine))
        await generate_tokens(engine, 1)  # cancelled requests are removed by the next step
        assert not engine._processor.has_pending_requests()
        cache.evict_cached_blocks()
        cache.pool.try_to_free_sectors()
        assert cache.compute_free_capacity() == 1.0
        assert not engine._outputs.queues

    with_engine(network, device, test)


@pytest.mark.slow
def test_cancellation_in_a_step_keeps_the_others_tokens(
    network: PreTrainedModel, device: DeviceWorker
) -> None:
    async def leave(engine: TransformersEngine, has_started: asyncio.Event) -> None:
        async with aclosing(engine.generate(PROMPT, Sampling(max_tokens=900, seed=2))) as chunks:
            async for _ in chunks:
                has_started.set()

    async def test(engine: TransformersEngine) -> None:
        alone = await generate_tokens(engine, 60)
        for _ in range(10):
            has_started = asyncio.Event()
            leaver = asyncio.create_task(leave(engine, has_started))
            stayer = asyncio.create_task(generate_tokens(engine, 60))
            await has_started.wait()
            leaver.cancel()
            assert await stayer == alone
            with pytest.raises(asyncio.CancelledError):
                await leaver

    with_engine(network, device, test)


async def _record(name: str, chunks: AsyncGenerator[TokenChunk, None], events: list[str]) -> None:
    async with aclosing(chunks):
        async for new in chunks:
            events.append(f"{name} ends" if new.finish else name)  # noqa: PERF401  # others tell, too


def test_annotation_limits_concurrent_requests(
    network: PreTrainedModel, device: DeviceWorker
) -> None:
    async def test(engine: TransformersEngine) -> None:
        events: list[str] = []
        await asyncio.gather(
            *(_record(name, engine.generate(PROMPT, GREEDY), events) for name in "abc")
        )
        assert set(events[: events.index("a ends")]) == {"a", "b"}
        assert events.index("c") > events.index("a ends")

    with_engine(network, device, test, DeviceModel(policy=ModelPolicy(max_batch_size=2)))


def test_lowered_limit_applies_from_the_next_token(
    network: PreTrainedModel, device: DeviceWorker
) -> None:
    device_model = DeviceModel()

    async def test(engine: TransformersEngine) -> None:
        events: list[str] = []
        chunks = {name: engine.generate(PROMPT, GREEDY) for name in "abc"}
        await asyncio.gather(*(anext(each) for each in chunks.values()))
        device_model.policy = ModelPolicy(max_batch_size=1)
        await asyncio.gather(*(_record(name, each, events) for name, each in chunks.items()))
        assert [each for each in events if "ends" in each] == ["a ends", "b ends", "c ends"]
        alone = events[: events.index("a ends")]
        assert alone.count("a") > 20
        assert alone.count("b") + alone.count("c") <= 2  # from earlier steps

    with_engine(network, device, test, device_model)


def test_close_releases_the_network(models: Path, device: DeviceWorker) -> None:
    network = load_network(models / "tiny-gpt2")
    alive = weakref.ref(network)

    async def test(engine: TransformersEngine) -> None:
        await generate_tokens(engine, 5)

    with_engine(network, device, test)
    del network
    gc.collect()
    assert alive() is None


def test_refuses_a_network_without_attention(device: DeviceWorker) -> None:
    config = MambaConfig(vocab_size=50, hidden_size=16, state_size=4, num_hidden_layers=1)
    config.num_attention_heads = 1

    async def test(engine: TransformersEngine) -> None:
        raise AssertionError(engine)

    with pytest.raises(ModelInvalid, match="mamba cannot generate"):
        with_engine(MambaForCausalLM(config), device, test)
