"""Networks with a LoRA adapter: equal to the base with the adapter merged into it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MixtralConfig, MixtralForCausalLM

from runtime.engines.engine import ModelFolder
from runtime.engines.networks.changed_layers import check_names, read_adapter
from runtime.engines.networks.network import AdapterEngine, NetworkEngine
from runtime.errors import ModelInvalid
from runtime.weights.converted_weights import converted
from runtime.weights.weight_source import DiskWeights
from tests.runtime.adapters import ALPHA, CONFIG, write_adapter
from tests.runtime.adapters import merge as merge_adapter
from tests.runtime.networks import load_network

CPU = torch.device("cpu")
PATHS = {
    "tiny-gpt2": ["transformer.h.0.attn.c_attn", "transformer.h.1.mlp.c_fc"],
    "tiny-t5": [
        "encoder.block.0.layer.0.SelfAttention.q",
        "decoder.block.0.layer.0.SelfAttention.v",
    ],
    "tiny-bert": ["bert.encoder.layer.0.attention.self.query"],
}


def adapted(base: Path, adapter: Path) -> Any:
    engine = AdapterEngine(read_adapter(adapter))
    sources = [DiskWeights(sorted(folder.glob("*.safetensors"))) for folder in (base, adapter)]
    tensors = [tensor for source in sources for tensor in source.layout.tensors]
    model = ModelFolder(base, None, tensors)
    skeleton = engine.build_skeleton(model, key=engine.skeleton_key(model), device=CPU, threads=1)
    stored = ModelFolder(base, None, sources[0].layout.tensors)
    conversions = NetworkEngine().build_skeleton(stored, key="", device=CPU, threads=1).conversions
    weights = converted(sources[0], conversions).map_tensors()
    skeleton.attach(weights | sources[1].map_tensors())
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


def test_names_may_be_those_of_published_weights(models: Path, tmp_path: Path) -> None:
    """Of adapters that were trained before transformers 5, which renamed layers."""
    old, new = (
        f"vit.{each}"
        for each in ("encoder.layer.1.attention.attention.query", "layers.1.attention.q_proj")
    )
    base = load_network(models / "tiny-vit")
    adapter = write_adapter(tmp_path, base, [new])
    arguments = {"pixel_values": torch.rand(1, 3, 32, 32)}
    with torch.inference_mode():
        wanted = adapted(models / "tiny-vit", adapter)(**arguments).logits
        tensors = load_file(adapter / "adapter_model.safetensors")
        renamed = {name.replace(new, old): each for name, each in tensors.items()}
        assert renamed.keys() != tensors.keys()
        save_file(renamed, adapter / "adapter_model.safetensors")
        found = adapted(models / "tiny-vit", adapter)(**arguments).logits
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        assert not torch.allclose(found, base(**arguments).logits)


def test_parts_of_joined_layers_have_no_adapter(tmp_path: Path) -> None:
    config = MixtralConfig(
        vocab_size=90,
        hidden_size=32,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=2,
    )
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    MixtralForCausalLM(config).save_pretrained(base)
    layer = "model.layers.0.block_sparse_moe.experts.1.w1"
    adapter.mkdir()
    path = f"base_model.model.{layer}.lora_"
    save_file(
        {f"{path}A.weight": torch.zeros(4, 32), f"{path}B.weight": torch.zeros(16, 4)},
        adapter / "adapter_model.safetensors",
    )
    (adapter / "adapter_config.json").write_text(json.dumps(CONFIG))
    told = f"{layer} is a part of model.layers.0.mlp.experts.gate_up_proj"
    with pytest.raises(ModelInvalid, match=told):
        adapted(base, adapter)


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
