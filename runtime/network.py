"""The network of a model, ready to infer: a skeleton without memory that takes mapped weights."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from registry.model import Task
from runtime.configuration import read_config, task_of
from runtime.errors import ModelInvalid
from runtime.weights import map_weights

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from transformers import PretrainedConfig, PreTrainedModel

SKELETON_LOCK = threading.Lock()
"""Building a network changes process-wide defaults of torch (dtype): one at a time, 30 ms each."""


def load_network(
    folder: Path, weight_paths: Sequence[Path], declared: Task | None
) -> PreTrainedModel:
    """The network in evaluation mode, with all weights; raises ModelInvalid. Blocks."""
    config = read_config(folder)
    task = task_of(config, declared)
    network = _skeleton(config, task)
    weights = map_weights(weight_paths)
    _assign(network, weights)
    _fill_unsaved_buffers(network)
    _check_complete(network)
    _read_generation_config(network, folder)
    network.eval()
    network.requires_grad_(requires_grad=False)
    return network


def _skeleton(config: PretrainedConfig, task: Task) -> PreTrainedModel:
    import transformers

    factories: dict[Task, Any] = {
        Task.TEXT_EMBEDDING: transformers.AutoModel,
        Task.TEXT_TO_TEXT: transformers.AutoModelForSeq2SeqLM,
        Task.TEXT_CLASSIFICATION: transformers.AutoModelForSequenceClassification,
        Task.IMAGE_CLASSIFICATION: transformers.AutoModelForImageClassification,
    }
    try:
        with SKELETON_LOCK, torch.device("meta"):
            network: PreTrainedModel = factories[task].from_config(config, trust_remote_code=False)
    except Exception as error:  # each architecture fails on an absurd shape in its own way
        raise ModelInvalid(
            f"config.json ({config.model_type}) gives no network for task {task.value}: {error}"
        ) from error
    return network


def _assign(network: PreTrainedModel, weights: Mapping[str, torch.Tensor]) -> None:
    """Give the skeleton its weights, under the names it has for them."""
    expected = network.state_dict()
    renamed = _renamed(weights, expected.keys(), network.base_model_prefix)
    wrong = [
        f"{name} has shape {list(renamed[name].shape)}, {list(tensor.shape)} is needed"
        for name, tensor in expected.items()
        if name in renamed and renamed[name].shape != tensor.shape
    ]
    if wrong:
        raise ModelInvalid(f"weights do not fit config.json: {'; '.join(wrong[:3])}")
    tied = set(network.all_tied_weights_keys)
    missing = sorted(expected.keys() - renamed.keys() - tied)
    if missing and all(name.startswith("pooler.") for name in missing):
        network.pooler = None  # embeddings are pooled from the last layer and need none
        missing = []
    if missing:
        raise ModelInvalid(
            f"{len(missing)} weights are missing, such as {missing[:3]};"
            f" the files hold {sorted(weights)[:3]} and more"
        )
    known = {name: tensor for name, tensor in renamed.items() if name in expected}
    network.load_state_dict(known, strict=False, assign=True)
    network.tie_weights()


def _renamed(
    weights: Mapping[str, torch.Tensor], expected: Any, prefix: str
) -> dict[str, torch.Tensor]:
    """Weights with the base model's prefix added or taken off where the network wants that."""
    renamed = {}
    for name, tensor in weights.items():
        if name in expected:
            renamed[name] = tensor
        elif name.removeprefix(f"{prefix}.") in expected:
            renamed[name.removeprefix(f"{prefix}.")] = tensor
        elif f"{prefix}.{name}" in expected:
            renamed[f"{prefix}.{name}"] = tensor
        else:
            renamed[_modern_name(name)] = tensor
    return renamed


def _modern_name(name: str) -> str:
    """Old checkpoints call the parameters of a layer normalisation gamma and beta."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )


def _fill_unsaved_buffers(network: PreTrainedModel) -> None:
    """Compute the buffers that no file holds, such as position numbers.

    The architecture's own initialisation knows their values; weights are marked as initialised,
    so it leaves them alone.
    """
    for tensor in network.state_dict(keep_vars=True).values():
        tensor._is_hf_initialized = True
    for module in network.modules():
        for name in module._non_persistent_buffers_set:
            buffer = module._buffers.get(name)
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = torch.empty_like(buffer, device="cpu")
    network.initialize_weights()


def _check_complete(network: PreTrainedModel) -> None:
    left = [name for name, value in network.named_parameters() if value.is_meta]
    left += [name for name, value in network.named_buffers() if value.is_meta]
    if left:
        raise ModelInvalid(f"{network.config.model_type}: no values for {sorted(left)[:3]}")


def _read_generation_config(network: PreTrainedModel, folder: Path) -> None:
    if not (folder / "generation_config.json").exists() or not network.can_generate():
        return
    from transformers import GenerationConfig

    try:
        network.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, TypeError) as error:
        raise ModelInvalid(f"generation_config.json cannot be used: {error}") from error


def memory_bytes_of(network: PreTrainedModel) -> int:
    """Bytes of all weights and buffers, tied ones once."""
    tensors = {
        tensor.untyped_storage().data_ptr() + tensor.storage_offset(): tensor.nbytes
        for tensor in (*network.parameters(), *network.buffers())
    }
    return sum(tensors.values())
