"""Attention that reads pages where they lie: logits and tokens of gathered pages, without masks."""

from __future__ import annotations

import asyncio
import shutil
import warnings
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)
from transformers.generation.continuous_batching.utils import build_attention_mask

from runtime.device.device_model import DeviceModel
from runtime.generation import limits, paged_attention
from runtime.generation.engine import Sampling
from runtime.generation.gathered_mask import BLOCK, gathered_mask
from runtime.generation.limits import (
    PAGE_TOKENS,
    STEP_TOKENS,
    Attention,
    GenerationLimits,
    cache_shape,
    step_memory,
)
from runtime.generation.page_tables import StepTokens, page_mask, page_table
from runtime.generation.transformers_engine import TransformersEngine

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from runtime.device.worker import DeviceWorker

SIMPLE = GenerationLimits(cache_bytes=1 << 22, max_concurrent=8, max_new_tokens=900, timeout_s=60)
PAGED = replace(SIMPLE, attention=Attention.PAGED)
SHARED = list(range(7, 7 + 70))
PROMPTS = (
    [3, 4, 5],
    [*SHARED, 1, 2],
    [*SHARED, 9],
    [(11 * number) % 200 + 1 for number in range(300)],
    [5],
)
SHAPE = {
    "vocab_size": 256, "num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4,
    "max_position_embeddings": 512,
}  # fmt: skip


def gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=256, n_layer=3, n_embd=32, n_head=4, n_positions=512)
    )


def llama() -> PreTrainedModel:
    """Four heads of queries share one of keys."""
    return LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=1, intermediate_size=64))


def mistral() -> PreTrainedModel:
    """Each token sees 40 others."""
    return MistralForCausalLM(
        MistralConfig(**SHAPE, num_key_value_heads=2, intermediate_size=64, sliding_window=40)
    )


@dataclass
class Generated:
    """What an engine made of all prompts at once, twice."""

    has_mask: bool = False
    tokens: list[list[list[int]]] = field(default_factory=list)
    """By round and prompt."""
    logits: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)
    """By request and position."""
    blocks: dict[str, list[int]] = field(default_factory=dict)
    """Of each request, of the first kind of layer."""


async def generate(
    network: PreTrainedModel, device: DeviceWorker, bounds: GenerationLimits
) -> Generated:
    loop = asyncio.get_running_loop()
    make = lambda: TransformersEngine(network, device, DeviceModel(), bounds, loop)  # noqa: E731  # one word
    engine = (await device.run(make)).value
    processor = engine._processor
    found = Generated(processor.inputs_and_outputs.attention_mask is not None)

    def record(_module: Any, _args: Any, output: Any) -> None:
        allocator = next(iter(processor.cache.cache_allocators.values()))
        requests = processor.inputs_and_outputs.requests_in_batch
        row = 0
        for each in requests:
            name = each.state.request_id
            found.blocks[name] = list(allocator.block_table[name])
            if each.has_new_token:
                found.logits[name, each.state.position_offset] = output.logits[0, row].clone()
                row += 1

    async def one(number: int, prompt: list[int]) -> list[int]:
        sampling = Sampling(max_tokens=12 + number, seed=number, temperature=0.7 * (number % 2))
        made = engine.generate(prompt, sampling)
        return [token async for some in made for token in some.token_ids]

    hook = network.register_forward_hook(record)
    async with asyncio.timeout(240):
        for _ in range(2):
            found.tokens.append(await asyncio.gather(*(one(*each) for each in enumerate(PROMPTS))))
            await device.run(lambda: _spoil(processor.cache))
    hook.remove()
    engine.close()
    return found


def _spoil(cache: Any) -> None:
    """Fill all pages with large numbers, as no request has any."""
    cache.evict_cached_blocks()
    for allocator in cache.cache_allocators.values():
        assert not allocator.block_table
        allocator.cache_tensor.fill_(1e6)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(gpt2, marks=pytest.mark.slow),
        pytest.param(llama, marks=pytest.mark.slow),
        mistral,
    ],
)
def test_logits_and_tokens_are_those_of_gathered_pages(device: DeviceWorker, make: object) -> None:
    """Within 1e-5 of logits of about 0.1: prompts of several steps, shared pages, a window."""
    assert callable(make)
    torch.manual_seed(0)
    network = make().eval()
    network.generation_config.eos_token_id = None
    network.config.eos_token_id = None
    usual = network.config._attn_implementation

    expected = asyncio.run(generate(network, device, SIMPLE))
    found = asyncio.run(generate(network, device, PAGED))
    assert expected.has_mask
    assert not found.has_mask
    assert found.logits.keys() == expected.logits.keys()
    for key, logits in expected.logits.items():
        torch.testing.assert_close(found.logits[key], logits, atol=1e-5, rtol=0)
    assert found.tokens == expected.tokens
    assert found.tokens[0] == found.tokens[1]  # whatever the pages held before
    assert network.config._attn_implementation == usual  # of other inferences
    assert len(set(map(tuple, found.tokens[0]))) == len(PROMPTS)
    assert any(blocks != sorted(blocks) for blocks in found.blocks.values())


def test_the_rest_of_a_new_page_holds_nothing_of_an_earlier_request(device: DeviceWorker) -> None:
    """A kernel multiplies it by weights of 0, which leave NaN as it is."""
    network = llama().eval()
    network.generation_config.eos_token_id = None
    network.config.eos_token_id = None

    async def run() -> None:
        loop = asyncio.get_running_loop()
        make = partial(TransformersEngine, network, device, DeviceModel(), PAGED, loop)
        engine = (await device.run(make)).value
        allocator = engine._processor.cache.cache_allocators["full_attention"]
        await device.run(lambda: _spoil(engine._processor.cache))
        chunks = engine.generate(list(range(1, 41)), Sampling(max_tokens=60, seed=0, temperature=0))
        for total in (40, 41, 42):
            await anext(chunks)
            ((_, blocks),) = allocator.block_table.items()
            for layer in range(3):
                for pages in allocator._kv_page_views[layer]:
                    stride = allocator.block_physical_stride // PAGE_TOKENS
                    values = torch.cat([pages[block * stride] for block in blocks])
                    assert bool(values[:total].abs().sum((1, 2)).all())
                    assert not bool(values[total:].any())
        await chunks.aclose()
        engine.close()

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler has some
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles with g++")
@pytest.mark.parametrize("new", [(1, 1), (40, 1)], ids=["decode", "with prompts"])
def test_a_compiled_kernel_reads_no_page_of_others(new: tuple[int, int]) -> None:
    """The one for a CPU: pages that a step does not need hold NaN."""
    torch.manual_seed(0)
    heads, groups, size, stride, count = 4, 2, 16, 6, 240
    tokens = [
        StepTokens(blocks, each, total)
        for blocks, each, total in zip(([7, 3, 9], [5]), new, (70, 4), strict=True)
    ]
    table = page_table(tokens, page_stride=stride, page_count=count, device=torch.device("cpu"))
    assert table is not None
    keys, values = (torch.full((count, PAGE_TOKENS, groups, size), torch.nan) for _ in range(2))
    for each in tokens:
        own = torch.tensor(each.blocks) * stride
        keys[own], values[own] = torch.randn(2, len(own), PAGE_TOKENS, groups, size)
    shape = (2, heads, 1, size) if table.is_decode else (1, heads, sum(new), size)
    query = torch.randn(shape)
    key, value = (each.flatten(0, 1).transpose(0, 1)[None] for each in (keys, values))
    kernel = torch.compile(flex_attention, fullgraph=True)
    mask = with_columns(page_mask(table), count)
    with torch.inference_mode():
        found = kernel(query, key, value, block_mask=mask, enable_gqa=True)
        plain = partial(flex_attention, block_mask=page_mask(table), enable_gqa=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is not compiled
            expected = plain(query, key.nan_to_num(), value.nan_to_num())
    torch.testing.assert_close(found, expected)


def with_columns(mask: BlockMask, columns: int) -> BlockMask:
    """Torch's kernels for a CPU want a column for each block of keys."""

    def wide(indices: torch.Tensor | None) -> torch.Tensor | None:
        return None if indices is None else pad(indices, (0, columns - indices.shape[-1]))

    pages = wide(mask.kv_indices)
    assert pages is not None
    return BlockMask.from_kv_blocks(
        mask.kv_num_blocks,
        pages,
        mask.full_kv_num_blocks,
        wide(mask.full_kv_indices),
        BLOCK_SIZE=mask.BLOCK_SIZE,
        mask_mod=mask.mask_mod,
        seq_lengths=mask.seq_lengths,
        compute_q_blocks=False,
    )


@pytest.mark.parametrize("make", [gpt2, llama, mistral])
def test_kernels_are_prepared_before_the_first_step(make: object) -> None:
    assert callable(make)
    seen: list[tuple[torch.Size, torch.Size]] = []

    def kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **_: Any) -> Any:
        assert key.shape == value.shape
        seen.append((query.shape, key.shape))
        return query

    network = make()
    paged_attention.prepare(network, kernel)
    keys = (1, limits.key_heads(network.config), 4 * PAGE_TOKENS, 8)
    with_prompts, gathers = (1, 4, STEP_TOKENS, 8), (1, 4, 4 * PAGE_TOKENS, 8)
    expected = [((2, 4, 1, 8), keys), (with_prompts, keys), (gathers, keys)]
    assert seen == expected[: 3 if network.config.model_type == "mistral" else 2]


def test_a_step_takes_less_memory() -> None:
    config = LlamaConfig(**SHAPE, num_key_value_heads=1, intermediate_size=64)
    shape = cache_shape(config, SIMPLE, 2)
    usual, paged = (step_memory(config, shape, 2, attention=each) for each in Attention)
    assert usual.mask_bytes > paged.mask_bytes == 0
    assert usual.layer_bytes > paged.layer_bytes == 0


def test_a_cache_is_no_larger_than_kernels_can_address() -> None:
    config = LlamaConfig(
        vocab_size=256, hidden_size=4096, num_attention_heads=32, num_hidden_layers=32,
        num_key_value_heads=32, max_position_embeddings=1 << 17,
    )  # fmt: skip
    huge = replace(PAGED, cache_bytes=1 << 40)
    shape = cache_shape(config, huge, 2)
    assert 0.99 * (1 << 31) < shape.total_bytes / 2 < 1 << 31
    assert cache_shape(config, replace(huge, attention=Attention.SDPA), 2).pages > shape.pages


@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(0, 300)), min_size=1, max_size=6),
    st.none() | st.integers(2, 90),
)
def test_mask_is_transformers_mask(requests: list[tuple[int, int]], window: int | None) -> None:
    """Of requests with so many new tokens after so many old ones."""
    cached = [old if window is None else min(old, window - 1) for _, old in requests]
    starts_q, starts_k = [0], [0]
    for (new, _), old in zip(requests, cached, strict=True):
        starts_q.append(starts_q[-1] + new)
        starts_k.append(starts_k[-1] + new + old)
    queries, keys = starts_q[-1], starts_k[-1]
    dense = torch.full((1, 1, queries, keys), torch.finfo(torch.float32).min)
    build_attention_mask(dense, starts_q, starts_k, window or 1)
    firsts_q, firsts_k = (torch.tensor(each, dtype=torch.int32) for each in (starts_q, starts_k))
    mask = gathered_mask(firsts_q, firsts_k, queries, keys, window)
    zero = torch.tensor(0)
    places = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
    assert torch.equal(mask.mask_mod(zero, zero, *places), dense[0, 0] == 0)
    seen = torch.zeros(-(-queries // BLOCK), -(-keys // BLOCK), dtype=torch.bool)
    for row, (count, indices) in enumerate(
        zip(mask.kv_num_blocks[0, 0], mask.kv_indices[0, 0], strict=True)
    ):
        seen[row, indices[:count].long()] = True
    rows, columns = (dense[0, 0] == 0).nonzero().unbind(1)
    assert bool(seen[rows // BLOCK, columns // BLOCK].all())  # no block is skipped in error
