"""A transformers network without weights, built from configuration files alone."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from registry.domain.model import Task
from runtime.engines.networks.adapter import plain_name
from runtime.engines.networks.configuration import read_config, task_of
from runtime.engines.networks.default_dtype import DefaultDtype
from runtime.engines.skeletons import ParameterSlot, Skeleton
from runtime.errors import ModelInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from transformers import PretrainedConfig, PreTrainedModel

    from runtime.weights.safetensors_files import StoredTensor

_BUILD_LOCK = threading.Lock()

Shapes = dict[str, tuple[int, ...]]
"""By the names of the stored tensors."""


def skeleton_key(
    folder: Path,
    declared: Task | None,
    tensors: Sequence[StoredTensor],
    dtype: torch.dtype | None = None,
) -> str:
    """Equal for models that can use one skeleton: same configuration, task, type and tensors."""
    kind = f"{declared!r} {dtype}"
    return digest_of(folder, ("config.json", "generation_config.json"), kind, tensors)


def digest_of(
    folder: Path, names: Sequence[str], kind: str, tensors: Sequence[StoredTensor]
) -> str:
    """Digest of a kind of model, its files of these names, and its tensors' names and shapes."""
    digest = hashlib.sha256(kind.encode())
    for name in names:
        path = folder / name
        digest.update(path.read_bytes() if path.exists() else b"-")
    rows = sorted((tensor.name, tensor.dtype, tensor.shape) for tensor in tensors)
    digest.update(json.dumps(rows).encode())
    return digest.hexdigest()


def build_skeleton(
    folder: Path,
    declared: Task | None,
    shapes: Shapes,
    *,
    key: str,
    device: torch.device,
    dtype: torch.dtype | None = None,
    prepare: Callable[[PreTrainedModel], None] = lambda _network: None,
) -> Skeleton:
    """The network in evaluation mode, without weights; raises ModelInvalid. Blocks.

    Args:
        folder: of the model's small files.
        declared: the task that the InferenceService names, if it does.
        shapes: of the tensors in the model's files.
        key: of the skeleton, see `skeleton_key`.
        device: for buffers that no file holds.
        dtype: of the weights; None: as config.json says.
        prepare: changes the network, which has no memory yet.
    """
    config = read_config(folder)
    config.dtype = dtype or config.dtype
    network = _network(config, task_of(config, declared))
    prepare(network)
    slots = _prepare(network, shapes, device)
    _read_generation_config(network, folder)
    return Skeleton(key, network, slots)


def build_transformer(
    folder: Path, class_name: str, shapes: Shapes, device: torch.device
) -> tuple[PreTrainedModel, tuple[ParameterSlot, ...]]:
    """A part of a model that is a transformers network, without weights, and their slots.

    Raises ModelInvalid.
    """
    import transformers

    config = read_config(folder)
    kind: Any = getattr(transformers, class_name)
    if not isinstance(config, kind.config_class):
        raise ModelInvalid(f"{folder.name}/config.json does not configure a {class_name}")
    with without_memory(f"no network can be built from {folder.name}/config.json"):
        network: PreTrainedModel = kind(config)
    return network, _prepare(network, shapes, device)


@contextmanager
def without_memory(failure: str) -> Iterator[None]:
    """Build a network whose tensors have no memory; raises ModelInvalid, beginning with `failure`.

    Building replaces functions of `torch.nn.init` for the whole process: one at a time, 30 ms each.
    """
    try:
        with _BUILD_LOCK, torch.device("meta"):
            yield
    except Exception as error:  # architectures fail on invalid shapes in different ways
        raise ModelInvalid(f"{failure}: {error}") from error


def _prepare(
    network: PreTrainedModel, shapes: Shapes, device: torch.device
) -> tuple[ParameterSlot, ...]:
    """Put a network into evaluation mode; returns the slots of its weights."""
    slots = _find_slots(network, shapes)
    _fill_unsaved_buffers(network, device)
    _check_complete(network, slots)
    network.eval()
    network.requires_grad_(requires_grad=False)
    return slots


def _network(config: PretrainedConfig, task: Task) -> PreTrainedModel:
    import transformers

    factories: dict[Task, Any] = {
        Task.TEXT_EMBEDDING: transformers.AutoModel,
        Task.TEXT_TO_TEXT: transformers.AutoModelForSeq2SeqLM,
        Task.TEXT_GENERATION: transformers.AutoModelForCausalLM,
        Task.TEXT_CLASSIFICATION: transformers.AutoModelForSequenceClassification,
        Task.TOKEN_CLASSIFICATION: transformers.AutoModelForTokenClassification,
        Task.FILL_MASK: transformers.AutoModelForMaskedLM,
        Task.IMAGE_CLASSIFICATION: transformers.AutoModelForImageClassification,
    }
    with without_memory(
        f"no network for task {task.value} can be built from config.json ({config.model_type})"
    ):
        wanted = config.dtype or torch.float32
        with DefaultDtype(wanted):
            # Without a dtype transformers does not change the default of all threads.
            network: PreTrainedModel = factories[task].from_config(
                config, dtype=None, trust_remote_code=False
            )
        _set_dtype(network.config, wanted)
        network.tie_weights()
    return network


def _set_dtype(config: PretrainedConfig, dtype: torch.dtype) -> None:
    """State the type of the weights, as transformers does, in the configuration and its parts."""
    config.dtype = dtype
    for name in config.sub_configs:
        if (part := getattr(config, name)) is not None:
            part.dtype = dtype


def _find_slots(network: PreTrainedModel, shapes: Shapes) -> tuple[ParameterSlot, ...]:
    """The slots of the stored tensors; raises ModelInvalid if weights are missing or do not fit."""
    renamed = _renamed(shapes, network.state_dict().keys(), network.base_model_prefix)
    groups = _tied_groups(network)
    missing = [group for group in groups if not any(name in renamed for name in group)]
    if missing and all(group[0].startswith("pooler.") for group in missing):
        network.pooler = None  # embeddings are pooled from the last layer
        groups = [group for group in groups if group not in missing]
        missing = []
    if missing:
        raise ModelInvalid(
            f"{len(missing)} weights are missing, such as {[group[0] for group in missing[:3]]};"
            f" the files hold {sorted(shapes)[:3]} and more"
        )
    tied = set(network.all_tied_weights_keys)
    slots: list[ParameterSlot] = []
    wrong = []
    for group in groups:
        held = [name for name in group if name in renamed]
        source = next((name for name in held if name not in tied), held[0])
        stored = renamed[source]
        for name in group:
            slot = parameter_slot(network, name, stored)
            slots.append(slot)
            if tuple(slot.empty.shape) != shapes[stored]:
                wrong.append(
                    f"{name} has shape {list(shapes[stored])}, {list(slot.empty.shape)} is needed"
                )
    if wrong:
        raise ModelInvalid(f"weights do not fit config.json: {'; '.join(wrong[:3])}")
    return tuple(slots)


def _tied_groups(network: PreTrainedModel) -> list[list[str]]:
    """Names of the weights, grouped by tensor."""
    groups: dict[int, list[str]] = {}
    for name, tensor in network.state_dict(keep_vars=True).items():
        groups.setdefault(id(tensor), []).append(name)
    return list(groups.values())


def parameter_slot(network: PreTrainedModel, name: str, stored: str) -> ParameterSlot:
    path, _, leaf = name.rpartition(".")
    module = network.get_submodule(path)
    entries = module._parameters if leaf in module._parameters else module._buffers
    empty = entries[leaf]
    if empty is None:
        raise ModelInvalid(f"{network.config.model_type}: {name} is not a weight")
    return ParameterSlot(entries, leaf, empty, stored)


def _renamed(stored: Mapping[str, Any], expected: Any, prefix: str) -> dict[str, str]:
    """Stored names by the network's names, with the base model's prefix added or removed."""
    renamed = {}
    for held in stored:
        name = plain_name(held)
        if name in expected:
            renamed[name] = held
        elif name.removeprefix(f"{prefix}.") in expected:
            renamed[name.removeprefix(f"{prefix}.")] = held
        elif f"{prefix}.{name}" in expected:
            renamed[f"{prefix}.{name}"] = held
        else:
            renamed[_modern_name(name)] = held
    return renamed


def _modern_name(name: str) -> str:
    """Old checkpoints call the parameters of a layer normalisation gamma and beta."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )


def _fill_unsaved_buffers(network: PreTrainedModel, device: torch.device) -> None:
    """Compute the buffers that no file holds, such as position numbers.

    The architecture's own initialisation computes them; weights are marked as initialised, so that
    it skips them.
    """
    for tensor in network.state_dict(keep_vars=True).values():
        tensor._is_hf_initialized = True
    for module in network.modules():
        for name in module._non_persistent_buffers_set:
            buffer = module._buffers.get(name)
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = torch.empty_like(buffer, device=device)
    network.initialize_weights()


def _check_complete(network: PreTrainedModel, slots: Sequence[ParameterSlot]) -> None:
    filled = {id(slot.empty) for slot in slots}
    tensors = (*network.named_parameters(), *network.named_buffers())
    left = [name for name, value in tensors if value.is_meta and id(value) not in filled]
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
