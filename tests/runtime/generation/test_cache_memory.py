"""The size of a model's key-value cache."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import Gemma4TextConfig

from runtime.device.staged_memory import StagedMemory
from runtime.engines.networks.configuration import read_config
from runtime.generation.cache_memory import (
    GPU_CACHE_SHARE,
    LEAST_CONTEXTS,
    PAGE_TOKENS,
    STEP_TOKENS,
    Room,
    cache_shape,
    generation_memory,
    limits_in,
    step_memory,
)
from runtime.generation.limits import DEFAULT_CACHE_BYTES, GenerationLimits
from runtime.settings import RuntimeSettings
from runtime.weights.safetensors_files import StoredTensor
from tests.runtime.fake_engine import FakeEngine
from tests.runtime.local_pod import local_pod, spec_of

LLAMA_8B = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 8192, "vocab_size": 128256,
    "dtype": "bfloat16",
}  # fmt: skip
NO_ROOM = Room(0, 0)
TOKEN_BYTES = 2 * 32 * 8 * 128 * 2
"""Keys and values of 32 layers of 8 heads of 128, in bf16."""
LIMITS = replace(
    RuntimeSettings().generation_limits, cache_bytes=1 << 30, counts_steps=True, max_concurrent=64
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    return tmp_path


def limits(cache: int) -> GenerationLimits:
    return GenerationLimits(cache, max_concurrent=16, max_new_tokens=4096, timeout_s=60)


def stored(dtype: str) -> list[StoredTensor]:
    return [StoredTensor("w", dtype, (2,), 0, 4), StoredTensor("ids", "I64", (1,), 64, 8)]


def test_a_quarter_of_an_80_gb_gpu_holds_the_context_of_all_requests(folder: Path) -> None:
    budget = int(80e9 * 0.9)
    shape = cache_shape(read_config(folder), limits(int(budget * GPU_CACHE_SHARE)), 2)
    assert shape.context_tokens == 8192
    assert shape.pages * PAGE_TOKENS == 16 * 8192
    assert shape.total_bytes == 16 * 8192 * TOKEN_BYTES


def test_weights_of_16_bits_have_a_cache_of_16_bits(folder: Path) -> None:
    in_16_bits = cache_shape(read_config(folder), limits(DEFAULT_CACHE_BYTES), 2)
    in_32_bits = cache_shape(read_config(folder), limits(DEFAULT_CACHE_BYTES), 4)
    assert in_16_bits.pages == 2 * in_32_bits.pages
    assert in_16_bits.pages * PAGE_TOKENS * TOKEN_BYTES == DEFAULT_CACHE_BYTES


def test_memory_is_reserved_by_the_type_of_the_stored_weights(folder: Path) -> None:
    """`config.json` may say otherwise; the weights keep the type of the files."""
    few = limits(PAGE_TOKENS * TOKEN_BYTES)  # one page of 16 bits
    for dtype, page_bytes in (
        ("BF16", PAGE_TOKENS * TOKEN_BYTES),
        ("F32", 2 * PAGE_TOKENS * TOKEN_BYTES),
    ):
        found = generation_memory(folder, None, few, stored(dtype), NO_ROOM)
        assert found.total_bytes == page_bytes


def test_a_gpu_counts_the_masks_and_activations_of_a_step(folder: Path) -> None:
    cache = int(80e9 * 0.9 * GPU_CACHE_SHARE)
    counted = replace(limits(cache), counts_steps=True)
    shape = cache_shape(read_config(folder), counted, 2)
    step = step_memory(read_config(folder), shape, 2)
    tokens = 16 * 8192 + STEP_TOKENS
    assert step.mask_bytes == STEP_TOKENS * tokens * 2
    assert step.layer_bytes == tokens * TOKEN_BYTES // 32 * (1 + 4)
    assert step.activation_bytes == STEP_TOKENS * 2 * (4096 + 14336) * 2
    assert step.score_bytes == STEP_TOKENS * 128256 * 4
    room = Room(int(80e9), int(80e9))
    found = generation_memory(folder, None, counted, stored("BF16"), room)
    parts = (step.mask_bytes, step.layer_bytes, step.activation_bytes, step.score_bytes)
    assert found.total_bytes == shape.total_bytes + sum(parts)
    assert found.limits.cache_bytes == shape.total_bytes


def in_room(folder: Path, whole: float, free: float) -> int:
    """Bytes of cache and step; checks that they fit."""
    counted = replace(limits(int(20e9)), counts_steps=True)
    config, room = read_config(folder), Room(int(whole), int(free))
    shape = cache_shape(config, limits_in(config, counted, 2, room), 2)
    total = shape.total_bytes + step_memory(config, shape, 2).total_bytes
    found = generation_memory(folder, None, counted, stored("BF16"), room)
    assert found.total_bytes == total
    assert total <= whole
    return shape.pages * PAGE_TOKENS


def test_a_cache_takes_what_other_models_leave(folder: Path) -> None:
    assert in_room(folder, 50e9, 50e9) == 16 * 8192  # all that requests can use
    tokens = in_room(folder, 50e9, 10e9)
    assert 8192 * LEAST_CONTEXTS < tokens < 16 * 8192
    assert tokens > in_room(folder, 50e9, 8e9)


def test_a_cache_evicts_others_for_few_contexts_alone(folder: Path) -> None:
    assert in_room(folder, 50e9, -15e9) == LEAST_CONTEXTS * 8192


def test_a_cache_fits_beside_weights_that_take_nearly_all(folder: Path) -> None:
    """Weights of 16 GB in a budget of 18.4 GB: a quarter of that did not fit."""
    assert 4096 < in_room(folder, 2.4e9, 2.4e9) < LEAST_CONTEXTS * 8192


def test_a_model_that_generates_nothing_has_no_cache(tmp_path: Path) -> None:
    found = generation_memory(tmp_path, None, limits(1 << 30), stored("F32"), NO_ROOM)
    assert found.total_bytes == 0


def test_a_page_has_room_for_the_largest_heads_of_any_layer() -> None:
    """Gemma 4's layers differ; its configuration refuses to name one size of all."""
    config = Gemma4TextConfig(num_hidden_layers=6, head_dim=256, global_head_dim=512)
    shape = cache_shape(config, limits(DEFAULT_CACHE_BYTES), 2)
    heads = config.num_key_value_heads
    assert shape.bytes_per_page == 2 * 6 * heads * 512 * 2 * PAGE_TOKENS


def test_what_is_free_bounds_the_cache(models: Path, tmp_path: Path) -> None:
    spec = spec_of("g", models / "tiny-gpt2")

    async def load(name: str, *, budget_bytes: int, device_bytes: int) -> tuple[int, int]:
        """Tokens of the cache, and the bytes that the model counts for."""
        memory = StagedMemory(FakeEngine(device_bytes))
        async with local_pod(
            tmp_path / name, memory=memory, budget_bytes=budget_bytes, limits=LIMITS
        ) as pod:
            await pod.load(spec)
            generator = pod.loader.store.by_key[spec.key].model.generator
            assert generator is not None
            pages: int = generator._processor.cache.num_blocks  # type: ignore[attr-defined]
            return pages * PAGE_TOKENS, pod.loader.store.bytes_of(spec.key)

    large, taken = asyncio.run(load("large", budget_bytes=1 << 30, device_bytes=1 << 40))
    budget_bytes = taken * 3 // 4
    by_budget, counted = asyncio.run(
        load("budget", budget_bytes=budget_bytes, device_bytes=1 << 40)
    )
    by_device, _ = asyncio.run(load("device", budget_bytes=1 << 30, device_bytes=budget_bytes))
    assert counted <= budget_bytes
    assert by_budget < large
    assert by_device < large
