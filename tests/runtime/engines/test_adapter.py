"""Networks with a LoRA adapter: equal to the base with the adapter merged into it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

from runtime.engines.engine import ModelFolder
from runtime.engines.networks.adapter import check_names, read_adapter
from runtime.engines.networks.network_engine import AdapterEngine
from runtime.errors import ModelInvalid
from runtime.weights.weight_source import DiskWeights
from tests.runtime.adapters import ALPHA, CONFIG, write_adapter
from tests.runtime.adapters import merge as merge_adapter
from tests.runtime.networks import load_network

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")
PATHS = {
    "tiny-gpt2": ["transformer.h.0.attn.c_attn", "transformer.h.1.mlp.c_fc"],
    "tiny-t5": [
        "encoder.block.0.layer.0.SelfAttention.q", "decoder.block.0.layer.0.SelfAttention.v",
    ],
    "tiny-bert": ["bert.encoder.layer.0.attention.self.query"],
}  # fmt: skip


def adapted(base: Path, adapter: Path) -> Any:
    engine = AdapterEngine(read_adapter(adapter))
    sources = [DiskWeights(sorted(folder.glob("*.safetensors"))) for folder in (base, adapter)]
    tensors = [tensor for source in sources for tensor in source.layout.tensors]
    model = ModelFolder(base, None, tensors)
    skeleton = engine.build_skeleton(model, key=engine.skeleton_key(model), device=CPU, threads=1)
    skeleton.attach(sources[0].map_tensors() | sources[1].map_tensors())
    return skeleton.network


@pytest.mark.parametrize("name", PATHS)
def test_adapted_network_equals_the_merged_one(models: Path, tmp_path: Path, name: str) -> None:
    base, merged = load_network(models / name), load_network(models / name)
    adapter = write_adapter(tmp_path, base, PATHS[name])
    merge_adapter(merged, adapter)
    arguments = {"input_ids": torch.tensor([[5, 6, 7, 1]])}
    if name == "tiny-t5":
        arguments["decoder_input_ids"] = torch.tensor([[0, 9]])
    with torch.inference_mode():
        found = adapted(models / name, adapter)(**arguments).logits
        torch.testing.assert_close(found, merged(**arguments).logits, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(found, base(**arguments).logits, atol=1e-2)


def test_names_may_lack_the_prefix_of_the_base_model(models: Path, tmp_path: Path) -> None:
    """An adapter that was trained on the network without its head."""
    base = load_network(models / "tiny-bert")
    adapter = write_adapter(tmp_path, base, PATHS["tiny-bert"])
    tensors = {
        each.name.replace("model.bert.", "model."): torch.zeros(each.shape)
        for each in DiskWeights([adapter / "adapter_model.safetensors"]).layout.tensors
    }
    save_file(tensors, adapter / "adapter_model.safetensors")
    arguments = {"input_ids": torch.tensor([[5, 6, 7, 1]])}
    with torch.inference_mode():
        found = adapted(models / "tiny-bert", adapter)(**arguments).logits
        torch.testing.assert_close(found, base(**arguments).logits)


def test_rank_stabilised_scale(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(CONFIG | {"use_rslora": True}))
    assert read_adapter(tmp_path).scale == ALPHA / 2


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3'; only LORA"),
        ({"use_dora": True}, "use_dora 'True'; only False can be served: merge"),
        ({"bias": "all"}, "bias 'all'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q": 8}}, "rank_pattern"),
        ({"r": 0}, "needs r, a whole number from 1"),
        ({"r": "8"}, "they are '8'"),
        ({"lora_alpha": None}, "lora_alpha"),
        ({"lora_alpha": float("nan")}, "lora_alpha"),
    ],
)
def test_other_adapters_are_refused(tmp_path: Path, fields: dict[str, Any], told: str) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(CONFIG | fields))
    with pytest.raises(ModelInvalid, match=told):
        read_adapter(tmp_path)


def test_other_tensors_are_refused() -> None:
    with pytest.raises(ModelInvalid, match="lora_embedding_A"):
        check_names(["base_model.model.a.lora_A.weight", "base_model.model.b.lora_embedding_A"])


def test_adapter_of_another_network_is_refused(models: Path, tmp_path: Path) -> None:
    gpt, t5 = load_network(models / "tiny-gpt2"), load_network(models / "tiny-t5")
    adapter = write_adapter(tmp_path / "a", t5, PATHS["tiny-t5"])
    with pytest.raises(ModelInvalid, match="which the base's network does not have"):
        adapted(models / "tiny-gpt2", adapter)
    wide = write_adapter(tmp_path / "b", gpt, PATHS["tiny-gpt2"][:1])
    path = f"base_model.model.{PATHS['tiny-gpt2'][0]}.lora_"
    save_file(
        {f"{path}A.weight": torch.zeros(4, 7), f"{path}B.weight": torch.zeros(9, 4)},
        wide / "adapter_model.safetensors",
    )
    with pytest.raises(ModelInvalid, match=r"are A \[4, 7\] and B \[9, 4\]; the base's layer has"):
        adapted(models / "tiny-gpt2", wide)
