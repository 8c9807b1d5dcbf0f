"""The default type of tensors while a network is built: of this thread alone."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from registry.domain.model import Task
from runtime.engines.networks.configuration import read_config
from runtime.engines.networks.network import DefaultDtype, _network

SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
MODELS: dict[str, tuple[dict[str, Any], Task, str]] = {
    "llama": (
        {**SMALL, "num_key_value_heads": 1}, Task.TEXT_GENERATION, "AutoModelForCausalLM",
    ),
    "diffllama": (  # weights that are drawn as they are made
        {**SMALL, "num_key_value_heads": 2}, Task.TEXT_GENERATION, "AutoModelForCausalLM",
    ),
    "bert": (SMALL, Task.TEXT_EMBEDDING, "AutoModel"),
    "vit": (
        {**SMALL, "image_size": 8, "patch_size": 4}, Task.IMAGE_CLASSIFICATION,
        "AutoModelForImageClassification",
    ),
    "m2m_100": (  # positions in a buffer of floats
        {
            "vocab_size": 32, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
            "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16,
            "decoder_ffn_dim": 16, "max_position_embeddings": 32,
        },
        Task.TEXT_TO_TEXT, "AutoModelForSeq2SeqLM",
    ),
}  # fmt: skip


def config_of(folder: Path, kind: str, dtype: str) -> Any:
    fields = {**MODELS[kind][0], "model_type": kind, "dtype": dtype}
    (folder / "config.json").write_text(json.dumps(fields))
    return read_config(folder)


def dtypes(network: torch.nn.Module) -> dict[str, torch.dtype]:
    named = (*network.named_parameters(), *network.named_buffers())
    return {name: tensor.dtype for name, tensor in named}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("kind", MODELS)
def test_networks_have_the_types_that_transformers_gives(
    kind: str, dtype: str, tmp_path: Path
) -> None:
    _, task, factory = MODELS[kind]
    with torch.device("meta"):
        expected = getattr(transformers, factory).from_config(config_of(tmp_path, kind, dtype))
    network = _network(config_of(tmp_path, kind, dtype), task)
    assert dtypes(network) == dtypes(expected)
    assert network.config.dtype == expected.config.dtype == getattr(torch, dtype)


def test_building_does_not_change_the_type_of_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.dtype] = []
    build = torch.nn.Linear.__init__

    def recorded(module: torch.nn.Linear, *args: Any, **kwargs: Any) -> None:
        with ThreadPoolExecutor(1) as other:
            seen.append(other.submit(lambda: torch.ones(1).dtype).result())
            seen.append(other.submit(torch.get_default_dtype).result())
        build(module, *args, **kwargs)

    monkeypatch.setattr(torch.nn.Linear, "__init__", recorded)
    _network(config_of(tmp_path, "llama", "bfloat16"), Task.TEXT_GENERATION)
    assert set(seen) == {torch.float32}
    assert torch.get_default_dtype() is torch.float32


def test_only_floats_without_a_type_get_it() -> None:
    with DefaultDtype(torch.bfloat16):
        assert torch.zeros(1).dtype is torch.bfloat16
        assert torch.full((1,), 0.5).dtype is torch.bfloat16
        assert torch.tensor([1, 2.0]).dtype is torch.bfloat16
        assert torch.get_default_dtype() is torch.bfloat16
        assert torch.arange(3).dtype is torch.int64
        assert torch.tensor([1, 2]).dtype is torch.int64
        assert torch.zeros(1, dtype=torch.float64).dtype is torch.float64
        assert torch.tensor(torch.ones(1, dtype=torch.float32).numpy()).dtype is torch.float32
    assert torch.zeros(1).dtype is torch.float32
