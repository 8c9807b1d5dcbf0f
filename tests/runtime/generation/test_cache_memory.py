"""The size of a model's key-value cache."""

import json
from pathlib import Path

import pytest
from transformers import Gemma4TextConfig

from runtime.engines.networks.configuration import read_config
from runtime.generation.cache_memory import PAGE_TOKENS, cache_shape, generation_bytes
from runtime.generation.limits import DEFAULT_CACHE_BYTES, GenerationLimits
from runtime.weights.safetensors_files import StoredTensor

LLAMA_8B = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 8192, "vocab_size": 128256,
    "dtype": "bfloat16",
}  # fmt: skip
TOKEN_BYTES = 2 * 32 * 8 * 128 * 2
"""Keys and values of 32 layers of 8 heads of 128, in bf16."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    return tmp_path


def limits(cache: int) -> GenerationLimits:
    return GenerationLimits(cache, max_concurrent=16, max_new_tokens=4096, timeout_s=60)


def stored(dtype: str) -> list[StoredTensor]:
    return [StoredTensor("w", dtype, (2,), 0, 4), StoredTensor("ids", "I64", (1,), 64, 8)]


def test_a_large_cache_holds_the_context_of_all_requests_and_no_more(folder: Path) -> None:
    shape = cache_shape(read_config(folder), limits(int(18e9)), 2)
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
        assert generation_bytes(folder, None, few, stored(dtype)) == page_bytes


def test_a_model_that_generates_nothing_has_no_cache(tmp_path: Path) -> None:
    assert generation_bytes(tmp_path, None, limits(1 << 30), stored("F32")) == 0


def test_a_page_has_room_for_the_largest_heads_of_any_layer() -> None:
    """Gemma 4's layers differ; its configuration refuses to name one size of all."""
    config = Gemma4TextConfig(num_hidden_layers=6, head_dim=256, global_head_dim=512)
    shape = cache_shape(config, limits(DEFAULT_CACHE_BYTES), 2)
    heads = config.num_key_value_heads
    assert shape.bytes_per_page == 2 * 6 * heads * 512 * 2 * PAGE_TOKENS
