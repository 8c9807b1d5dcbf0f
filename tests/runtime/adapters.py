"""LoRA adapters as PEFT saves them, with random matrices, and the same changes in a base."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers.pytorch_utils import Conv1D

RANK, ALPHA = 4, 24.0
CONFIG: dict[str, Any] = {
    "peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", "use_dora": False,
    "modules_to_save": None, "target_modules": ["c_attn"], "base_model_name_or_path": "x/y",
}  # fmt: skip


def write_adapter(folder: Path, network: Any, paths: list[str], seed: int = 0) -> Path:
    """An adapter of the network's layers at these paths."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for path in paths:
        layer = network.get_submodule(path)
        is_turned = isinstance(layer, Conv1D)
        outputs, inputs = layer.weight.T.shape if is_turned else layer.weight.shape
        name = f"base_model.model.{path}.lora_"
        tensors[f"{name}A.weight"] = torch.randn(RANK, inputs, generator=generator)
        tensors[f"{name}B.weight"] = torch.randn(outputs, RANK, generator=generator)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG))
    return folder


def merge(network: Any, folder: Path, scale: float = ALPHA / RANK) -> None:
    """Add the adapter to the network's own weights."""
    tensors = load_file(folder / "adapter_model.safetensors")
    for name, left in tensors.items():
        if ".lora_A." not in name:
            continue
        right = tensors[name.replace(".lora_A.", ".lora_B.")]
        path = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        layer = network.get_submodule(path)
        added = right @ left * scale
        added = added.T if isinstance(layer, Conv1D) else added
        layer.weight = torch.nn.Parameter(layer.weight + added, requires_grad=False)
