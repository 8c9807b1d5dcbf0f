"""The engine by itself, on a device worker: sharing the device, failing, giving memory back."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM

from registry.domain.model import ModelPolicy
from runtime.device.device_model import DeviceModel
from runtime.device.worker import DeviceWorker
from runtime.errors import InferenceFailed, ModelInvalid, NoRoomToInfer
from runtime.generation.engine import Finish, Sampling, TokenChunk
from runtime.generation.limits import GenerationLimits
from runtime.generation.transformers_engine import TransformersEngine
from tests.runtime.networks import load_network

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
    from pathlib import Path

    from transformers import PreTrainedModel

LIMITS = GenerationLimits(cache_bytes=1 << 22, max_concurrent=8, max_new_tokens=900, timeout_s=60)
PROMPT = [260, 270, 280]
GREEDY = Sampling(max_tokens=30, seed=0, temperature=0)


@pytest.fixture
def device() -> Iterator[DeviceWorker]:
    worker = DeviceWorker(threads=1, max_queued=64)
    worker.start()
    yield worker
    worker.close()


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


async def made(engine: TransformersEngine, tokens: int, **sampling: Any) -> list[int]:
    """All tokens of one request."""
    ids: list[int] = []
    wish = Sampling(max_tokens=tokens, **{"seed": 0, "temperature": 0.0, **sampling})
    async with aclosing(engine.generate(PROMPT, wish)) as news:
        async for new in news:
            ids += new.token_ids
    return ids


def test_greedy_tokens_are_those_of_generate(
    network: PreTrainedModel, device: DeviceWorker
) -> None:
    with torch.inference_mode():
        expected = network.generate(
            input_ids=torch.tensor([PROMPT]), max_new_tokens=40, do_sample=False
        )[0].tolist()

    async def test(engine: TransformersEngine) -> None:
        assert PROMPT + await made(engine, 40) == expected

    with_engine(network, device, test)


def test_other_work_of_the_device_goes_between_steps(
    network: PreTrainedModel, device: DeviceWorker
) -> None:
    async def test(engine: TransformersEngine) -> None:
        news = engine.generate(PROMPT, Sampling(max_tokens=900, seed=0))
        first = await anext(news)
        assert (await device.run(lambda: 7)).value == 7
        second = await anext(news)
        assert first.finish is None
        assert second.finish is None
        await news.aclose()

    with_engine(network, device, test)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        pytest.param(RuntimeError("the device broke"), InferenceFailed, id="fault"),
        pytest.param(torch.OutOfMemoryError("the device broke"), NoRoomToInfer, id="no-room"),
    ],
)
def test_a_step_that_fails_ends_its_requests_and_no_others(
    network: PreTrainedModel, device: DeviceWorker, error: Exception, told: type[Exception]
) -> None:
    left = [20]

    def fail_later(*_: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise error

    hook = network.register_forward_pre_hook(fail_later)

    async def test(engine: TransformersEngine) -> None:
        results = await asyncio.gather(
            made(engine, 100), made(engine, 50, seed=3), return_exceptions=True
        )
        assert [type(result) for result in results] == [told] * 2
        assert "the device broke" in str(results[0])
        assert len(await made(engine, 30)) == 30

    with_engine(network, device, test)
    hook.remove()


def test_requests_that_end_or_leave_give_their_pages_back(
    network: PreTrainedModel, device: DeviceWorker
) -> None:
    async def leave(engine: TransformersEngine) -> None:
        async with aclosing(engine.generate(PROMPT, Sampling(max_tokens=900, seed=1))) as news:
            await anext(news)

    async def test(engine: TransformersEngine) -> None:
        cache = engine._processor.cache
        for _ in range(40):
            await asyncio.gather(leave(engine), made(engine, 5), leave(engine))
        await made(engine, 1)  # who left is taken out by the next step
        assert not engine._processor.has_pending_requests()
        cache.evict_cached_blocks()
        cache.pool.try_to_free_sectors()
        assert cache.compute_free_capacity() == 1.0
        assert not engine._outputs.queues

    with_engine(network, device, test)


def test_one_that_is_cancelled_while_it_steps_leaves_the_others_their_tokens(
    network: PreTrainedModel, device: DeviceWorker
) -> None:
    async def leave(engine: TransformersEngine, has_started: asyncio.Event) -> None:
        async with aclosing(engine.generate(PROMPT, Sampling(max_tokens=900, seed=2))) as news:
            async for _ in news:
                has_started.set()

    async def test(engine: TransformersEngine) -> None:
        alone = await made(engine, 60)
        for _ in range(10):
            has_started = asyncio.Event()
            leaver = asyncio.create_task(leave(engine, has_started))
            stayer = asyncio.create_task(made(engine, 60))
            await has_started.wait()
            leaver.cancel()
            assert await stayer == alone
            with pytest.raises(asyncio.CancelledError):
                await leaver

    with_engine(network, device, test)


async def _tell(name: str, news: AsyncGenerator[TokenChunk, None], told: list[str]) -> None:
    async with aclosing(news):
        async for new in news:
            told.append(f"{name} ends" if new.finish else name)  # noqa: PERF401  # others tell, too


def test_the_models_annotation_bounds_who_makes_tokens_at_once(
    network: PreTrainedModel, device: DeviceWorker
) -> None:
    async def test(engine: TransformersEngine) -> None:
        told: list[str] = []
        await asyncio.gather(
            *(_tell(name, engine.generate(PROMPT, GREEDY), told) for name in "abc")
        )
        assert set(told[: told.index("a ends")]) == {"a", "b"}
        assert told.index("c") > told.index("a ends")

    with_engine(network, device, test, DeviceModel(policy=ModelPolicy(max_batch_size=2)))


def test_a_bound_that_is_lowered_holds_from_the_next_token(
    network: PreTrainedModel, device: DeviceWorker
) -> None:
    device_model = DeviceModel()

    async def test(engine: TransformersEngine) -> None:
        told: list[str] = []
        news = {name: engine.generate(PROMPT, GREEDY) for name in "abc"}
        await asyncio.gather(*(anext(each) for each in news.values()))
        device_model.policy = ModelPolicy(max_batch_size=1)
        await asyncio.gather(*(_tell(name, each, told) for name, each in news.items()))
        assert [each for each in told if "ends" in each] == ["a ends", "b ends", "c ends"]
        alone = told[: told.index("a ends")]
        assert alone.count("a") > 20
        assert alone.count("b") + alone.count("c") <= 2  # of the steps before

    with_engine(network, device, test, device_model)


def test_the_end_token_is_why_it_stopped(network: PreTrainedModel, device: DeviceWorker) -> None:
    with torch.inference_mode():
        ids = network.generate(
            input_ids=torch.tensor([PROMPT]), max_new_tokens=20, do_sample=False
        )[0].tolist()[len(PROMPT) :]
    network.generation_config.eos_token_id = ids[3]

    async def test(engine: TransformersEngine) -> None:
        news = [new async for new in engine.generate(PROMPT, Sampling(20, 0, temperature=0))]
        assert [token for new in news for token in new.token_ids] == ids[: ids.index(ids[3]) + 1]
        assert news[-1].finish is Finish.STOP

    with_engine(network, device, test)


def test_closing_lets_the_network_go(models: Path, device: DeviceWorker) -> None:
    network = load_network(models / "tiny-gpt2")
    alive = weakref.ref(network)

    async def test(engine: TransformersEngine) -> None:
        await made(engine, 5)

    with_engine(network, device, test)
    del network
    gc.collect()
    assert alive() is None


def test_a_network_without_attention_is_refused(device: DeviceWorker) -> None:
    config = MambaConfig(vocab_size=50, hidden_size=16, state_size=4, num_hidden_layers=1)
    config.num_attention_heads = 1

    async def test(engine: TransformersEngine) -> None:
        raise AssertionError(engine)

    with pytest.raises(ModelInvalid, match="mamba cannot generate"):
        with_engine(MambaForCausalLM(config), device, test)
