"""Captured steps of a generation: tokens as without graphs, one graph for each number of requests.

The attention of a captured step is FlexAttention's plain operations, which the fake graphs repeat.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch

from runtime.device.device_model import DeviceModel
from runtime.device.staged_memory import StagedMemory
from runtime.generation import paged_attention
from runtime.generation.engine import Sampling
from runtime.generation.limits import Attention, GenerationLimits
from runtime.generation.step_graphs import StepGraphs
from runtime.generation.transformers_engine import TransformersEngine
from tests.runtime.fake_engine import FakeEngine
from tests.runtime.fake_graphs import FakeGraph, FakeGraphMaker
from tests.runtime.generation.test_paged_attention import gpt2, llama, mistral
from tests.runtime.local_pod import local_pod, spec_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transformers import PreTrainedModel

    from runtime.device.forward_graphs import GraphMaker
    from runtime.device.worker import DeviceWorker

LIMITS = GenerationLimits(
    cache_bytes=1 << 20, max_concurrent=6, max_new_tokens=900, timeout_s=60,
    attention=Attention.PAGED,
)  # fmt: skip
PROMPTS = ([3, 4, 5], [5], list(range(9, 69)))


@pytest.fixture(autouse=True)
def _plain_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch does not run FlexAttention under a recorder of operations."""
    monkeypatch.setattr(paged_attention, "_kernel", lambda *_: plain_attention)


def plain_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    block_mask: Any,
    scale: float | None,
    enable_gqa: bool,
    kernel_options: object,
) -> torch.Tensor:
    """As FlexAttention defines it, by the mask's function."""
    batch, head, one, other = (
        torch.arange(size).view([-1 if place == axis else 1 for place in range(4)])
        for axis, size in enumerate((query.shape[0], 1, query.shape[2], key.shape[2]))
    )
    seen = block_mask.mask_mod(batch, head, one, other)
    key, value = (
        each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value)
    )
    scores = (query @ key.transpose(2, 3)) * (scale or query.shape[3] ** -0.5)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num()
    return weights @ value


class Failing(FakeGraphMaker):
    """Cannot capture any work."""

    def capture(self, work: Callable[[], Any], pool: object) -> tuple[FakeGraph, Any]:
        raise RuntimeError("operation not permitted when stream is capturing")


def endless(make: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    torch.manual_seed(0)
    network = make().eval()
    network.generation_config.eos_token_id = None
    network.config.eos_token_id = None
    return network


async def started(
    network: PreTrainedModel, device: DeviceWorker, graphs: GraphMaker | None
) -> TransformersEngine:
    loop = asyncio.get_running_loop()
    make = partial(TransformersEngine, network, device, DeviceModel(), LIMITS, loop, graphs)
    return (await device.run(make)).value


async def texts(engine: TransformersEngine, count: int = 3) -> list[list[int]]:
    """Tokens of requests that end at different steps, every second one with a seed."""

    async def one(number: int) -> list[int]:
        sampling = Sampling(max_tokens=10 + 5 * number, seed=number, temperature=number % 2)
        made = engine.generate(PROMPTS[number], sampling)
        return [token async for some in made for token in some.token_ids]

    async with asyncio.timeout(120):
        return await asyncio.gather(*map(one, range(count)))


@pytest.mark.parametrize("make", [gpt2, pytest.param(llama, marks=pytest.mark.slow), mistral])
def test_tokens_are_those_without_graphs(
    device: DeviceWorker, make: Callable[[], PreTrainedModel]
) -> None:
    network, maker = endless(make), FakeGraphMaker()

    async def run(graphs: GraphMaker | None) -> list[list[list[int]]]:
        engine = await started(network, device, graphs)
        found = [await texts(engine), await texts(engine)]
        if graphs is not None:
            assert sizes(engine) == {1, 2, 4}
        engine.close()
        return found

    expected = asyncio.run(run(None))
    assert asyncio.run(run(maker)) == expected
    assert len(maker.graphs) == 3  # of 1 and 2 requests, and of 4, which three are padded to
    assert maker.pools == 1
    assert sum(each.replays for each in maker.graphs) > 20


def sizes(engine: TransformersEngine) -> set[int]:
    return set(engine._processor.model_runner.graphs.steps._captured)


def test_what_cannot_be_captured_runs_as_it_is(device: DeviceWorker) -> None:
    network = endless(llama)

    async def run(graphs: GraphMaker | None) -> list[list[int]]:
        engine = await started(network, device, graphs)
        found = await texts(engine)
        if graphs is not None:
            assert len(engine._processor.model_runner.graphs.steps) == 0
        engine.close()
        return found

    assert asyncio.run(run(Failing())) == asyncio.run(run(None))


def test_graphs_end_with_their_engine_and_are_captured_again(device: DeviceWorker) -> None:
    """Those of the next load read the weights and pages of that load."""
    network, maker = endless(llama), FakeGraphMaker()

    async def run() -> list[list[int]]:
        engine = await started(network, device, maker)
        found = await texts(engine, 2)
        kept = weakref.ref(engine._processor.cache)
        captured = len(maker.graphs)
        maker.graphs.clear()
        gc.collect()
        gc.disable()
        try:
            engine.close()
            assert kept() is None
        finally:
            gc.enable()
        assert captured == 2
        return found

    first = asyncio.run(run())
    with torch.no_grad():
        for each in network.parameters():
            each.mul_(1.5)
    plain_network = endless(llama)
    plain_network.load_state_dict(network.state_dict())

    async def plain() -> list[list[int]]:
        engine = await started(plain_network, device, None)
        found = await texts(engine, 2)
        engine.close()
        return found

    second = asyncio.run(run())
    assert second == asyncio.run(plain())
    assert second != first


def test_a_pod_captures_steps_of_loaded_models_alone(models: Path, tmp_path: Path) -> None:
    """And again after an unload: the pages are others then."""
    spec = spec_of("g", models / "tiny-gpt2")
    loaded: list[bool] = []

    async def tokens(maker: FakeGraphMaker | None, name: str) -> list[list[int]]:
        found = []
        memory = StagedMemory(FakeEngine(graphs=maker))
        async with local_pod(tmp_path / name, memory=memory, limits=LIMITS) as pod:
            if isinstance(maker, _Watching):
                maker.on_capture = lambda: loaded.append(spec.key in pod.loader.store.by_key)
            for _ in range(2):
                await pod.load(spec)
                generator = pod.loader.store.by_key[spec.key].model.generator
                assert isinstance(generator, TransformersEngine)
                found += await texts(generator)
                await pod.unload(spec)
        return found

    expected = asyncio.run(tokens(None, "plain"))
    assert asyncio.run(tokens(_Watching(), "graphs")) == expected
    assert loaded == [True] * 6


class _Watching(FakeGraphMaker):
    on_capture: Callable[[], None]

    def capture(self, work: Callable[[], Any], pool: object) -> tuple[FakeGraph, Any]:
        self.on_capture()
        return super().capture(work, pool)


def test_lack_of_memory_is_no_reason_to_go_on_without_a_graph() -> None:
    class Full(FakeGraphMaker):
        def capture(self, work: Callable[[], Any], pool: object) -> tuple[FakeGraph, Any]:
            raise torch.OutOfMemoryError("CUDA out of memory")

    graphs = StepGraphs(Full(), min_uses=1)
    with pytest.raises(torch.OutOfMemoryError):
        graphs.run(1, lambda given: given["x"] + 1, {"x": torch.ones(1)})


def test_a_size_is_captured_at_its_third_step() -> None:
    graphs = StepGraphs(maker := FakeGraphMaker())
    with torch.inference_mode():
        for number in range(5):
            found = graphs.run(
                2, lambda given: given["x"] * 2, {"x": torch.full((2,), number), "n": 1}
            )
            assert found.tolist() == [2 * number] * 2
            assert len(maker.graphs) == (number >= 2)
