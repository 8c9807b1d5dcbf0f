"""Checkpoints whose names and types are not those of the network: equal to `from_pretrained`."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, PreTrainedModel

from registry.domain.model import ModelSpec, Task
from runtime.device.staged_memory import StagedMemory
from runtime.engines.networks.configuration import read_config
from runtime.errors import ModelInvalid
from runtime.loading.model_store import StoreEntry
from runtime.weights.weight_source import DiskWeights
from tests.runtime.fake_engine import FakeEngine
from tests.runtime.local_pod import LocalPod, local_pod, spec_of
from tests.runtime.networks import load_network

pytestmark = pytest.mark.slow

WEIGHTS = "model.safetensors"
_LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
           "intermediate_size": 48}  # fmt: skip
_TEXT = {**_LAYERS, "vocab_size": 90, "max_position_embeddings": 64, "bos_token_id": 1,
         "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
_IMAGE = {**_LAYERS, "image_size": 32, "patch_size": 16}
_EXPERTS = {**_TEXT, "num_key_value_heads": 2, "num_experts_per_tok": 2, "head_dim": 8}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViTForImageClassification", _IMAGE),
    "swin": ("SwinForImageClassification", {"image_size": 32, "embed_dim": 16, "depths": [1, 1],
                                            "num_heads": [2, 2], "window_size": 2}),
    "dinov2": ("Dinov2ForImageClassification", _IMAGE),
    "segformer": ("SegformerForImageClassification",
                  {"hidden_sizes": [16, 16, 16, 16], "depths": [1, 1, 1, 1]}),
    "gpt_neox": ("GPTNeoXForCausalLM", _TEXT),
    "mixtral": ("MixtralForCausalLM", {**_EXPERTS, "num_local_experts": 12}),
    "qwen3_moe": ("Qwen3MoeForCausalLM",
                  {**_EXPERTS, "num_experts": 4, "moe_intermediate_size": 16}),
    "granitemoe": ("GraniteMoeForCausalLM", {**_EXPERTS, "num_local_experts": 4}),
    "olmoe": ("OlmoeForCausalLM", {**_EXPERTS, "num_experts": 4}),
    "nomic_bert": ("NomicBertForMaskedLM", _TEXT),
}  # fmt: skip


def write(folder: Path, kind: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A checkpoint as its authors publish it; returns the network that wrote it."""
    name, fields = KINDS[kind]
    architecture = getattr(transformers, name)
    torch.manual_seed(0)
    network: PreTrainedModel = architecture(architecture.config_class(**fields)).to(dtype).eval()
    network.save_pretrained(folder)
    return network


def change(folder: Path, **fields: Any) -> None:
    """Change fields of the configuration."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


def assert_same(found: PreTrainedModel, wanted: PreTrainedModel) -> None:
    tensors = wanted.state_dict()
    assert found.state_dict().keys() == tensors.keys()
    for name, tensor in found.state_dict().items():
        assert tensor.dtype == tensors[name].dtype, name
        assert torch.equal(tensor, tensors[name]), name


def assert_read_alike(folder: Path, network: PreTrainedModel) -> None:
    """As transformers itself reads the folder."""
    assert_same(load_network(folder), type(network).from_pretrained(folder))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_published_names_are_read(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    network = write(tmp_path, kind, dtype)
    assert_read_alike(tmp_path, network)


@pytest.mark.parametrize("kind", ["vit", "mixtral"])
def test_names_of_the_network_itself_are_read(tmp_path: Path, kind: str) -> None:
    """As transformers 5 had written them, had it not returned to the published ones."""
    network = write(tmp_path, kind)
    tied = set(network.all_tied_weights_keys)
    tensors = {name: each for name, each in network.state_dict().items() if name not in tied}
    save_file(tensors, tmp_path / WEIGHTS, {"format": "pt"})
    assert_same(load_network(tmp_path), network)


def test_renamed_tensors_stay_mapped(tmp_path: Path) -> None:
    """They take no memory of their own."""
    write(tmp_path, "vit")
    found = load_network(tmp_path)
    starts = sorted(each.data_ptr() for each in found.parameters())
    extent = starts[-1] - starts[0]
    assert extent <= (tmp_path / WEIGHTS).stat().st_size


def test_a_base_model_is_read_from_a_checkpoint_with_a_head(tmp_path: Path) -> None:
    write(tmp_path, "nomic_bert")
    assert_same(load_network(tmp_path, Task.TEXT_EMBEDDING), AutoModel.from_pretrained(tmp_path))


def test_old_names_of_normalisation_are_read(models: Path, tmp_path: Path) -> None:
    tensors = load_file(models / "tiny-bert" / WEIGHTS)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): each
        for name, each in tensors.items()
    }
    assert old.keys() != tensors.keys()
    (tmp_path / "config.json").write_bytes((models / "tiny-bert" / "config.json").read_bytes())
    save_file(old, tmp_path / WEIGHTS, {"format": "pt"})
    assert_same(load_network(tmp_path), load_network(models / "tiny-bert"))


def test_experts_that_are_missing_are_told(tmp_path: Path) -> None:
    write(tmp_path, "mixtral")
    tensors = load_file(tmp_path / WEIGHTS)
    del tensors["model.layers.1.block_sparse_moe.experts.7.w2.weight"]
    save_file(tensors, tmp_path / WEIGHTS, {"format": "pt"})
    with pytest.raises(ModelInvalid, match=r"layers.1.mlp.experts.down_proj has shape \[11, "):
        load_network(tmp_path)


def test_experts_of_several_shapes_are_told(tmp_path: Path) -> None:
    write(tmp_path, "mixtral")
    tensors = load_file(tmp_path / WEIGHTS)
    tensors["model.layers.1.block_sparse_moe.experts.7.w2.weight"] = torch.zeros(3, 3)
    save_file(tensors, tmp_path / WEIGHTS, {"format": "pt"})
    with pytest.raises(ModelInvalid, match=r"mixtral: .*down_proj cannot be made of 12 stored"):
        load_network(tmp_path)


@pytest.mark.parametrize("part", ["norm", "embed_tokens", "lm_head", "experts.3.w1"])
@pytest.mark.parametrize("other", [torch.float32, torch.float16, torch.float64])
def test_mixed_types_become_that_of_the_configuration(
    tmp_path: Path, part: str, other: torch.dtype
) -> None:
    network = write(tmp_path, "mixtral", torch.bfloat16)
    tensors = load_file(tmp_path / WEIGHTS)
    mixed = {name: each.to(other) if part in name else each for name, each in tensors.items()}
    assert any(each.dtype == other for each in mixed.values())
    save_file(mixed, tmp_path / WEIGHTS, {"format": "pt"})
    assert_read_alike(tmp_path, network)


@pytest.mark.parametrize("named", ["bfloat16", "float16", "float32", None])
@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_the_configuration_decides_the_type(tmp_path: Path, named: str | None, key: str) -> None:
    network = write(tmp_path, "gpt_neox", torch.float16)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["dtype"]
    (tmp_path / "config.json").write_text(json.dumps(config | ({key: named} if named else {})))
    assert_read_alike(tmp_path, network)


def test_layers_that_need_32_bits_keep_them(models: Path, tmp_path: Path) -> None:
    """T5's output projections, where the configuration has float16."""
    tensors = load_file(models / "tiny-t5" / WEIGHTS)
    (tmp_path / "config.json").write_bytes((models / "tiny-t5" / "config.json").read_bytes())
    change(tmp_path, dtype="float16")
    save_file(tensors, tmp_path / WEIGHTS, {"format": "pt"})
    wanted = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path)
    assert {each.dtype for each in wanted.parameters()} == {torch.float16, torch.float32}
    assert_same(load_network(tmp_path), wanted)


def test_numbers_without_end_in_a_configuration_are_read(tmp_path: Path) -> None:
    write(tmp_path, "gpt_neox")
    change(tmp_path, layer_norm_eps={"__float__": "Infinity"})
    assert read_config(tmp_path).layer_norm_eps == math.inf


@pytest.mark.parametrize("stored", ["both", "differing", "source", "target"])
def test_tied_weights_may_be_stored_under_any_name(tmp_path: Path, stored: str) -> None:
    """Both, if they differ, are kept apart, as transformers keeps them."""
    network = write(tmp_path, "mixtral")
    tensors = load_file(tmp_path / WEIGHTS)
    change(tmp_path, tie_word_embeddings=True)
    embedding = tensors.pop("model.embed_tokens.weight")
    head = tensors.pop("lm_head.weight")
    match stored:
        case "both":
            kept = {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding.clone()}
        case "differing":
            kept = {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
        case "source":
            kept = {"model.embed_tokens.weight": embedding}
        case _:
            kept = {"lm_head.weight": embedding}
    save_file(tensors | kept, tmp_path / WEIGHTS, {"format": "pt"})
    assert_read_alike(tmp_path, network)


def test_heads_that_are_not_tied_must_be_stored(tmp_path: Path) -> None:
    write(tmp_path, "mixtral")
    tensors = load_file(tmp_path / WEIGHTS)
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / WEIGHTS, {"format": "pt"})
    with pytest.raises(ModelInvalid, match=r"1 weights are missing, such as \['lm_head.weight'\]"):
        load_network(tmp_path)


def test_what_the_architecture_computes_may_be_missing(tmp_path: Path) -> None:
    config = AutoConfig.for_model(
        "marian",
        vocab_size=50,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=32,
        pad_token_id=0,
        decoder_start_token_id=0,
    )
    network = transformers.MarianMTModel(config).eval()
    network.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    assert not any("embed_positions" in name for name in tensors)
    del tensors["final_logits_bias"]
    save_file(tensors, tmp_path / WEIGHTS, {"format": "pt"})
    found = load_network(tmp_path, Task.TEXT_TO_TEXT)
    assert_same(found, type(network).from_pretrained(tmp_path))


def memory_of(pod: LocalPod, spec: ModelSpec) -> StoreEntry:
    return pod.loader.store.by_key[spec.key]


@pytest.mark.parametrize("is_staged", [False, True])
def test_joined_models_load_from_every_tier(
    models: Path, tmp_path: Path, *, is_staged: bool
) -> None:
    """From the host's memory as they were joined, and the memory that they take is counted."""
    folder = tmp_path / "model"
    network = write(folder, "mixtral", torch.bfloat16)
    tokenizer = transformers.AutoTokenizer.from_pretrained(models / "tiny-gpt2")
    network.resize_token_embeddings(len(tokenizer))
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    tensors = load_file(folder / WEIGHTS)
    mixed = {name: each.float() if "norm" in name else each for name, each in tensors.items()}
    save_file(mixed | {"unused": torch.zeros(1 << 20)}, folder / WEIGHTS, {"format": "pt"})
    spec = spec_of("m", folder)
    wanted = type(network).from_pretrained(folder)
    size = sum(each.nbytes for each in wanted.parameters())

    async def run() -> None:
        memory = StagedMemory(FakeEngine()) if is_staged else None
        async with local_pod(tmp_path, memory=memory, host_bytes=1 << 26) as pod:
            for tier in ("remote", "disk", "host"):
                assert await pod.load(spec) == tier
                entry = memory_of(pod, spec)
                assert_same(entry.model._network_in_use(), wanted)
                assert entry.shared is not None
                assert size <= entry.shared.weights.size_bytes < size * 1.05
                await pod.unload(spec)
                if tier == "disk":
                    await pod.demote(spec)

    asyncio.run(run())
    assert size < DiskWeights([folder / WEIGHTS]).layout.size_bytes - (1 << 22)
