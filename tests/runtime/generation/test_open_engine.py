"""The engine for a network: the texts of `generate` whatever is computed beside them."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel, T5Config, T5ForConditionalGeneration

from runtime.device.queue import DeviceModel
from runtime.device.worker import DeviceWorker
from runtime.errors import InferenceFailed, ModelInvalid
from runtime.generation.engine import Finish, GenerationEngine, Sampling
from runtime.generation.engine_factory import BatchTrial, open_engine, try_batches
from runtime.generation.limits import GenerationLimits
from runtime.generation.sequential_engine import SequentialEngine
from runtime.generation.transformers_engine import TransformersEngine
from tests.runtime.generation.networks import END, SIZES, small_network

pytestmark = pytest.mark.slow

LIMITS = GenerationLimits(cache_bytes=1 << 22, max_concurrent=8, max_new_tokens=900, timeout_s=60)
PROMPTS = ([5, 17, 99, 3, 44, 120, 7], [9], [200, 100, 50, 25, 12, 6, 3, 1] * 4)
GREEDY = Sampling(max_tokens=10, seed=0, temperature=0, end_ids=frozenset({END}))


def generated(network: PreTrainedModel, prompt: list[int], **more: Any) -> list[int]:
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0, **more}
    with torch.inference_mode():
        found = network.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
    begin = 0 if network.config.is_encoder_decoder else len(prompt)
    ids_found: list[int] = found[0, begin:].tolist()
    return ids_found


async def tokens_of(
    engine: GenerationEngine, prompt: list[int], sampling: Sampling = GREEDY
) -> list[int]:
    ids: list[int] = []
    async with aclosing(engine.generate(prompt, sampling)) as chunks:
        async for chunk in chunks:
            ids += chunk.token_ids
    return ids


def with_engine(
    network: PreTrainedModel,
    device: DeviceWorker,
    test: Callable[[GenerationEngine, BatchTrial], Awaitable[None]],
    known: BatchTrial | None = None,
) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        opened = await device.run(
            lambda: open_engine(
                network, device, DeviceModel(), LIMITS, loop, pads_left=True, known=known
            )
        )
        engine, trial = opened.value
        assert engine is not None
        async with asyncio.timeout(60):
            await test(engine, trial)
        engine.close()

    asyncio.run(run())


@pytest.mark.parametrize("kind", SIZES)
def test_a_crowd_gets_the_texts_that_each_would_get_alone(kind: str, device: DeviceWorker) -> None:
    network = small_network(kind)
    expected = [generated(network, prompt) for prompt in PROMPTS]

    async def test(engine: GenerationEngine, _: BatchTrial) -> None:
        crowd = await asyncio.gather(*(tokens_of(engine, PROMPTS[i % 3]) for i in range(9)))
        assert crowd == [expected[i % 3] for i in range(9)]

    with_engine(network, device, test)


@pytest.mark.parametrize(
    ("kind", "engine_class"),
    [("llama", TransformersEngine), ("gemma2", TransformersEngine), ("bloom", SequentialEngine)],
)
def test_texts_are_computed_together_where_that_is_right(
    kind: str, engine_class: type, device: DeviceWorker
) -> None:
    async def test(engine: GenerationEngine, trial: BatchTrial) -> None:
        assert isinstance(engine, engine_class)
        assert trial.is_padded

    with_engine(small_network(kind), device, test)


def test_a_network_that_attends_to_other_texts_is_found_out(
    device: DeviceWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = small_network("gptj")
    monkeypatch.setattr(type(network), "_supports_attention_backend", True)

    async def test(engine: GenerationEngine, trial: BatchTrial) -> None:
        assert isinstance(engine, SequentialEngine)
        assert not trial.is_continuous

    with_engine(network, device, test)


def test_rows_run_alone_where_padding_changes_them() -> None:
    with torch.inference_mode():
        assert not try_batches(small_network("rwkv"), None, pads_left=True).is_padded
        assert try_batches(small_network("bloom"), None, pads_left=True).is_padded


@pytest.mark.parametrize(
    ("field", "value"), [("index_topk", 2048), ("indexer_budget", 2048), ("model_type", "cpmant")]
)
def test_rows_run_alone_where_no_short_trial_shows_what_padding_does(
    field: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = small_network("llama")
    monkeypatch.setattr(network.config, field, value, raising=False)
    with torch.inference_mode():
        assert not try_batches(network, None, pads_left=True).is_padded


def test_a_network_that_holds_the_state_of_a_text_itself_has_no_engine(
    device: DeviceWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = small_network("gptj")
    forward, last = type(network).forward, torch.zeros(())

    def stateful(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal last
        found = forward(self, *args, **kwargs)
        kept, last = last, found.logits[:, -1:].mean(dim=0, keepdim=True)
        is_first = kwargs["input_ids"].shape[1] > 1
        found.logits = found.logits if is_first else found.logits + kept
        return found

    monkeypatch.setattr(type(network), "forward", stateful)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        opened = await device.run(
            lambda: open_engine(
                network, device, DeviceModel(), LIMITS, loop, pads_left=True, known=None
            )
        )
        assert opened.value == (None, BatchTrial(False, False, takes_turns=False))

    asyncio.run(run())


def test_what_is_known_of_an_architecture_is_not_tried_again(
    device: DeviceWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.generation.engine_factory.try_batches", None)
    known = BatchTrial(is_padded=True, is_continuous=False)

    async def test(engine: GenerationEngine, trial: BatchTrial) -> None:
        assert isinstance(engine, SequentialEngine)
        assert trial is known

    with_engine(small_network("llama"), device, test, known)


def test_the_engine_leaves_the_attention_of_the_network_as_it_was(device: DeviceWorker) -> None:
    """Gemma 2 is computed by an attention of its own in steps, which V1 and V2 cannot use."""
    network = small_network("gemma2")
    expected = generated(network, PROMPTS[0])

    async def test(engine: GenerationEngine, _: BatchTrial) -> None:
        for _again in range(2):
            assert (await device.run(lambda: generated(network, PROMPTS[0]))).value == expected
            assert await tokens_of(engine, PROMPTS[0]) == expected

    with_engine(network, device, test)
    assert network.config._attn_implementation == "eager"


def test_a_network_that_cannot_generate_is_refused_by_its_architecture(
    device: DeviceWorker,
) -> None:
    network = small_network("gptj")

    def fail(*_: object) -> None:
        raise ValueError("no heads")

    network.register_forward_pre_hook(fail)

    async def test(engine: GenerationEngine, _: BatchTrial) -> None:
        raise AssertionError(engine)

    with pytest.raises(ModelInvalid, match="gptj cannot generate text: no heads"):
        with_engine(network, device, test)


@pytest.mark.parametrize("kind", ["llama", "gptj"])
def test_every_engine_selects_tokens_in_the_same_way(kind: str, device: DeviceWorker) -> None:
    network = small_network(kind)
    repeated = {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2}
    network.generation_config = GenerationConfig(**repeated)
    expected = generated(network, PROMPTS[2])
    sampling = Sampling(max_tokens=10, seed=0, temperature=0, repetition_penalty=1.5)

    async def test(engine: GenerationEngine, _: BatchTrial) -> None:
        assert engine.defaults.repetition_penalty == 1.5
        crowd = await asyncio.gather(*(tokens_of(engine, PROMPTS[2], sampling) for _ in range(2)))
        assert crowd == [expected, expected]
        drawn = Sampling(max_tokens=10, seed=5, temperature=1.2, top_k=20, top_p=0.9, min_p=0.01)
        alone = await tokens_of(engine, PROMPTS[0], drawn)
        assert alone == await tokens_of(engine, PROMPTS[0], drawn)

    with_engine(network, device, test)


@pytest.mark.parametrize("kind", ["llama", "gptj"])
def test_end_tokens_come_after_the_least_length_alone(kind: str, device: DeviceWorker) -> None:
    network = small_network(kind)
    ids = generated(network, PROMPTS[0])
    ends = frozenset({ids[2]})

    async def test(engine: GenerationEngine, _: BatchTrial) -> None:
        early = Sampling(max_tokens=10, seed=0, temperature=0, end_ids=ends)
        chunks = [new async for new in engine.generate(PROMPTS[0], early)]
        assert [token for new in chunks for token in new.token_ids] == ids[: ids.index(ids[2]) + 1]
        assert chunks[-1].finish is Finish.STOP
        late = Sampling(max_tokens=10, seed=0, temperature=0, end_ids=ends, min_tokens=8)
        assert not ends & set((await tokens_of(engine, PROMPTS[0], late))[:8])

    with_engine(network, device, test)


def test_a_decoder_with_an_encoder_generates_a_text_of_its_own(device: DeviceWorker) -> None:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=100,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        tie_word_embeddings=False,
    )
    network = T5ForConditionalGeneration(config).eval()
    expected = generated(network, [5, 6, 7, 1])[1:]

    async def test(engine: GenerationEngine, _: BatchTrial) -> None:
        assert not engine.continues_prompt
        sampling = Sampling(max_tokens=10, seed=0, temperature=0, end_ids=frozenset({1}))
        assert await tokens_of(engine, [5, 6, 7, 1], sampling) == expected

    with_engine(network, device, test)


def test_a_step_that_fails_ends_its_request_alone(device: DeviceWorker) -> None:
    network = small_network("gptj")

    async def test(engine: GenerationEngine, _: BatchTrial) -> None:
        assert isinstance(engine, SequentialEngine)

        def fail(*_: object) -> None:
            raise ValueError("the device broke")

        hook = network.register_forward_pre_hook(fail)
        with pytest.raises(InferenceFailed, match="the device broke"):
            await tokens_of(engine, PROMPTS[0])
        hook.remove()
        assert len(await tokens_of(engine, PROMPTS[0])) == 10

    with_engine(network, device, test)


@pytest.mark.parametrize("kind", ["llama", "gptj"])
def test_other_jobs_run_between_the_tokens_of_a_text(kind: str, device: DeviceWorker) -> None:
    async def test(engine: GenerationEngine, _: BatchTrial) -> None:
        chunks = engine.generate(PROMPTS[0], Sampling(max_tokens=90, seed=0))
        await anext(chunks)
        assert (await device.run(lambda: 7)).value == 7
        await anext(chunks)
        await chunks.aclose()
        assert len(await tokens_of(engine, PROMPTS[0])) == 10

    with_engine(small_network(kind), device, test)
