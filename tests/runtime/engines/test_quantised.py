"""Checkpoints with weights of 8 bits: equal to the network with the same weights in 32 bits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.engines.networks.changed_layers import scaled_weight
from runtime.errors import ModelInvalid
from runtime.weights.weight_source import DiskWeights
from tests.runtime.networks import load_network
from tests.servers import copy_model

FP8, INT8 = torch.float8_e4m3fn, torch.int8
COMPRESSED = {"quant_method": "compressed-tensors", "format": "float-quantized"}
INPUT = {"input_ids": torch.tensor([[5, 6, 7, 1]])}


def _per_row(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 127
    return (weight / scale).round().to(INT8), scale


def _per_layer(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = weight.abs().amax() / 448
    return (weight / scale).to(FP8), scale


def _per_block(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks of 24 x 10, the last of which are cut."""
    rows, columns = -(-weight.shape[0] // 24), -(-weight.shape[1] // 10)
    generator = torch.Generator().manual_seed(1)
    scale = weight.abs().max() / 448 * (1 + torch.rand(rows, columns, generator=generator))
    wide = scale.repeat_interleave(24, 0)[: len(weight)].repeat_interleave(10, 1)
    return (weight / wide[:, : weight.shape[1]]).to(FP8), scale


def quantise(
    models: Path,
    folder: Path,
    config: dict[str, Any],
    quantised: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    leaf: str = "weight_scale",
    block: tuple[int, int] | None = None,
) -> tuple[Path, Path]:
    """tiny-bert with its encoder's linear layers quantised, and with the same numbers unpacked."""
    small = copy_model(models / "tiny-bert", folder / "small")
    whole = copy_model(models / "tiny-bert", folder / "whole")
    tensors = load_file(small / "model.safetensors")
    plain = dict(tensors)
    for name, weight in list(tensors.items()):
        if ".layer." in name and name.endswith(".weight") and weight.dim() == 2:
            tensors[name], scale = quantised(weight)
            tensors[f"{name.removesuffix('weight')}{leaf}"] = scale
            plain[name] = scaled_weight(tensors[name], scale, block)
    save_file(tensors, small / "model.safetensors")
    save_file(plain, whole / "model.safetensors")
    fields = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps(fields | {"quantization_config": config}))
    return small, whole


def _logits(folder: Path) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = load_network(folder)(**INPUT).logits
        return logits


@pytest.mark.parametrize(
    ("config", "quantised", "leaf", "block"),
    [
        pytest.param(
            {**COMPRESSED, "format": "int-quantized"},
            _per_row,
            "weight_scale",
            None,
            id="int8-rows",
        ),
        pytest.param(COMPRESSED, _per_layer, "weight_scale", None, id="fp8-layers"),
        pytest.param(
            {"quant_method": "fp8", "weight_block_size": [24, 10]},
            _per_block,
            "weight_scale_inv",
            (24, 10),
            id="fp8-blocks",
        ),
    ],
)
def test_quantised_network_equals_the_unpacked_one(
    models: Path, tmp_path: Path, config: dict[str, Any], quantised: Any, leaf: str, block: Any
) -> None:
    small, whole = quantise(models, tmp_path, config, quantised, leaf, block)
    torch.testing.assert_close(_logits(small), _logits(whole), rtol=1e-5, atol=1e-5)
    assert not torch.equal(_logits(whole), _logits(models / "tiny-bert"))
    sizes = [DiskWeights([each / "model.safetensors"]).layout.size_bytes for each in (small, whole)]
    assert sizes[0] < sizes[1]


def test_scales_keep_their_type_when_others_are_converted(models: Path, tmp_path: Path) -> None:
    small, _ = quantise(models, tmp_path, COMPRESSED, _per_layer)
    found = load_network(small, dtype=torch.bfloat16).state_dict()
    kinds = {
        name.rpartition(".")[2]: each.dtype for name, each in found.items() if ".query" in name
    }
    assert kinds == {"weight": FP8, "weight_scale": torch.float32, "bias": torch.bfloat16}


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"quant_method": "gptq", "bits": 4}, "quant_method 'gptq'"),
        ({**COMPRESSED, "format": "pack-quantized"}, "format 'pack-quantized'"),
        ("int8", "must be an object, was 'int8'"),
        (None, "must be an object, was 'None'"),
        ({"quant_method": "fp8", "weight_block_size": [0, 8]}, "two positive numbers"),
        ({"quant_method": "fp8", "weight_block_size": [8, 8]}, r"has shape \[\]; a layer of"),
    ],
)
def test_other_checkpoints_are_refused(
    models: Path, tmp_path: Path, config: Any, told: str
) -> None:
    small, _ = quantise(models, tmp_path, config, _per_layer)
    with pytest.raises(ModelInvalid, match=told):
        load_network(small)


def _change(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda tensors, path: tensors.pop(f"{path}.weight_scale"), "and none of"),
        (
            lambda tensors, path: tensors.update({f"{path}.weight": torch.zeros(3, 3)}),
            "must be of F8_E4M3 or F8_E5M2 or I8, were F32",
        ),
        (
            lambda tensors, _: tensors.update({"embeddings.weight_scale": torch.ones(1)}),
            "only linear layers can have one",
        ),
        (
            lambda tensors, path: tensors.update({f"{path}.weight_scale": torch.ones(7)}),
            r"has shape \[7\]",
        ),
    ],
)
def test_scales_and_weights_must_fit(
    models: Path, tmp_path: Path, change: Callable[[dict[str, torch.Tensor], str], Any], told: str
) -> None:
    small, _ = quantise(models, tmp_path, COMPRESSED, _per_layer)
    names = load_file(small / "model.safetensors")
    path = next(name for name in names if ".query" in name).rpartition(".")[0]
    _change(small, lambda tensors: change(tensors, path))
    with pytest.raises(ModelInvalid, match=told):
        load_network(small)
