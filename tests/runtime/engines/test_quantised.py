"""Quantised checkpoints are refused by name: vLLM computes them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from runtime.errors import ModelUnsupported
from tests.runtime.networks import load_network
from tests.servers import copy_model


@pytest.mark.parametrize(
    ("leaf", "dtype"),
    [
        pytest.param("weight_scale", torch.float32, id="compressed-tensors"),
        pytest.param("weight_scale_inv", torch.float32, id="fp8-blocks"),
        pytest.param("qweight", torch.int32, id="gptq"),
        pytest.param("weight", torch.float8_e4m3fn, id="no-scales"),
    ],
)
def test_quantised_checkpoints_are_refused(
    models: Path, tmp_path: Path, leaf: str, dtype: torch.dtype
) -> None:
    folder = copy_model(models / "tiny-bert", tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    path = next(name for name in tensors if ".query" in name).rpartition(".")[0]
    tensors[f"{path}.{leaf}"] = torch.ones(4).to(dtype)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelUnsupported, match=f"{path}.{leaf} is of a quantised checkpoint"):
        load_network(folder)
