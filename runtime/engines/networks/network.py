"""A transformers network without weights, built from configuration files alone."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import torch
from torch.overrides import TorchFunctionMode

from registry.domain.model import Task
from runtime.engines.engine import Engine, ModelFolder, ParameterSlot, Skeleton
from runtime.engines.networks.changed_layers import Adapter, check_not_quantised, shorten_calls
from runtime.engines.networks.configuration import read_config, task_in, without_memory
from runtime.engines.networks.reading import Reading, dtype_of, may_be_missing, plan_reading
from runtime.errors import ModelInvalid
from runtime.storage.listing import MODULES
from runtime.weights.safetensors_files import StoredTensor

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


_FLOAT_FACTORIES: Final = frozenset(
    {torch.empty, torch.empty_strided, torch.zeros, torch.ones, torch.rand, torch.randn, torch.eye,
     torch.linspace, torch.logspace, torch.bartlett_window, torch.blackman_window,
     torch.hamming_window, torch.hann_window, torch.kaiser_window}
)  # fmt: skip
_VALUE_FACTORIES: Final = frozenset({torch.full, torch.arange, torch.tensor, torch.scalar_tensor})
"""They make float tensors if one of their arguments is a float."""


class DefaultDtype(TorchFunctionMode):
    """In the block, float tensors made by this thread without a dtype have this one.

    `torch.set_default_dtype` applies to the whole process: concurrent inferences of other models
    would compute masks and positions in the wrong dtype.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self._thread = 0
        self._process_default = torch.get_default_dtype

    def __enter__(self) -> Self:
        """Only one thread may be in such a block at a time."""
        self._thread = threading.get_ident()
        self._process_default = torch.get_default_dtype
        # Networks call it, and modes do not intercept it.
        torch.get_default_dtype = self._default_of_thread
        return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]  # torch's

    def __exit__(self, *error: object) -> None:
        torch.get_default_dtype = self._process_default
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch's

    def _default_of_thread(self) -> torch.dtype:
        is_own = threading.get_ident() == self._thread
        return self._dtype if is_own else self._process_default()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        keywords = dict(kwargs or {})
        if keywords.get("dtype") is None and (
            func in _FLOAT_FACTORIES
            or (func in _VALUE_FACTORIES and _has_float((args, *keywords.values())))
            or (func is torch.normal and (len(args) > 2 or "size" in keywords))
        ):
            keywords["dtype"] = self._dtype
        return func(*args, **keywords)


def _has_float(values: Any) -> bool:
    """True if one of Python's numbers is a float; tensors and arrays keep their dtype."""
    if isinstance(values, (list, tuple)):
        return any(_has_float(value) for value in values)
    return isinstance(values, float)


Prepare = Callable[["PreTrainedModel"], "Mapping[str, str]"]
"""Changes a network; returns the names in it of tensors that are no part of the checkpoint."""


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
    model: ModelFolder, *, key: str, device: torch.device, prepare: Prepare
) -> Skeleton:
    """The network in evaluation mode, without weights; raises ModelInvalid. Blocks.

    `device`: for buffers that no file holds. `prepare` changes the network, which has no memory
    yet.
    """
    config = read_config(model.path)
    config.dtype = model.dtype or dtype_of(config, model.tensors)
    network = _network(config, task_in(model.path, config, model.task))
    reading = plan_reading(network, model.tensors, prepare(network))
    slots = _prepare(network, reading, model.tensors, device)
    _read_generation_config(network, model.path)
    return Skeleton(key, network, slots, reading.conversions)


def build_transformer(
    folder: Path, class_name: str, tensors: Sequence[StoredTensor], device: torch.device
) -> tuple[PreTrainedModel, tuple[ParameterSlot, ...]]:
    """A part of a model that is a transformers network, without weights, and their slots.

    The weights keep their types. Raises ModelInvalid, also where stored tensors have to be joined.
    """
    import transformers

    config = read_config(folder)
    kind: Any = getattr(transformers, class_name)
    if not isinstance(config, kind.config_class):
        raise ModelInvalid(f"{folder.name}/config.json does not configure a {class_name}")
    with without_memory(f"no network can be built from {folder.name}/config.json"):
        network: PreTrainedModel = kind(config)
    reading = plan_reading(network, tensors, {})
    if any(each.convert is not None for each in reading.conversions or ()):
        raise ModelInvalid(f"{folder.name} has tensors to join, which parts of pipelines cannot")
    return network, _prepare(network, reading, tensors, device)


def _prepare(
    network: PreTrainedModel,
    reading: Reading,
    tensors: Sequence[StoredTensor],
    device: torch.device,
) -> tuple[ParameterSlot, ...]:
    """Put a network into evaluation mode; returns the slots of its weights."""
    slots, computed = _find_slots(network, reading.made, tensors)
    _fill_computed(network, computed, device)
    _check_complete(network, slots)
    network.eval()
    network.requires_grad_(requires_grad=False)
    shorten_calls(network)
    return slots


def _embedding_factory(config: PretrainedConfig) -> Any:
    """Of an encoder alone, where the network has one, as sentence-transformers takes it."""
    import transformers

    has_encoder = type(config) in transformers.MODEL_FOR_TEXT_ENCODING_MAPPING
    return transformers.AutoModelForTextEncoding if has_encoder else transformers.AutoModel


def _network(config: PretrainedConfig, task: Task) -> PreTrainedModel:
    import transformers

    factories: dict[Task, Any] = {
        Task.TEXT_EMBEDDING: _embedding_factory(config),
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


def _find_slots(
    network: PreTrainedModel, made: Mapping[str, StoredTensor], tensors: Sequence[StoredTensor]
) -> tuple[tuple[ParameterSlot, ...], list[str]]:
    """The slots of stored tensors, and the names of tensors to compute.

    Raises ModelInvalid if weights are missing or do not fit.
    """
    groups = _tied_groups(network)
    missing = [group for group in groups if not any(name in made for name in group)]
    computed = [group for group in missing if may_be_missing(network, group[0])]
    missing = [group for group in missing if group not in computed]
    if missing and all(group[0].startswith("pooler.") for group in missing):
        network.pooler = None  # embeddings are pooled from the last layer
        missing = []
    if missing:
        raise ModelInvalid(
            f"{len(missing)} weights are missing, such as {[group[0] for group in missing[:3]]};"
            f" the files hold {sorted(tensor.name for tensor in tensors)[:3]} and more"
        )
    sources = _sources(network, groups, made)
    wrong = []
    slots = []
    for name, source in sources.items():
        slot = parameter_slot(network, name, source.name)
        slots.append(slot)
        if slot.empty.shape != source.shape:
            wrong.append(
                f"{name} has shape {list(source.shape)}, {list(slot.empty.shape)} is needed"
            )
    if wrong:
        raise ModelInvalid(f"weights do not fit config.json: {'; '.join(wrong[:3])}")
    return tuple(slots), [name for group in computed for name in group]


def _sources(
    network: PreTrainedModel, groups: Sequence[Sequence[str]], made: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor]:
    """What fills each tensor: if it is not stored, what fills one that it is tied to.

    Tied tensors that are all stored may differ, in spite of the configuration.
    """
    tied = network.all_tied_weights_keys
    sources: dict[str, StoredTensor] = {}
    for group in groups:
        held = [name for name in group if name in made]
        first = next((name for name in held if name not in tied), held[0] if held else None)
        if first is not None:
            sources |= {name: made.get(name, made[first]) for name in group}
    return sources


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


def _fill_computed(network: PreTrainedModel, names: Sequence[str], device: torch.device) -> None:
    """Compute the tensors of these names, and the buffers that no file holds.

    The architecture's own initialisation computes them; weights are marked as initialised, so that
    it skips them.
    """
    for name, tensor in network.state_dict(keep_vars=True).items():
        tensor._is_hf_initialized = name not in names
    for name in names:
        slot = parameter_slot(network, name, "")
        empty = torch.empty_like(slot.empty, device=device)
        is_parameter = isinstance(slot.empty, torch.nn.Parameter)
        slot.entries[slot.name] = torch.nn.Parameter(empty) if is_parameter else empty
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


class NetworkEngine(Engine):
    name = "transformers"
    takes_dtype = True

    def skeleton_key(self, model: ModelFolder) -> str:
        names = ("config.json", "generation_config.json", MODULES)
        return digest_of(model.path, names, f"{model.task!r} {model.dtype}", model.tensors)

    def build_skeleton(
        self, model: ModelFolder, *, key: str, device: torch.device, threads: int
    ) -> Skeleton:
        return build_skeleton(model, key=key, device=device, prepare=partial(self._prepare, model))

    def _prepare(self, model: ModelFolder, made: PreTrainedModel) -> Mapping[str, str]:
        check_not_quantised(model.path, model.tensors)
        return {}


class AdapterEngine(NetworkEngine):
    """Builds the network of an adapter's base, with the adapter's matrices.

    The model's folder is that of the base; its tensors are those of both.
    """

    takes_dtype = False

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def skeleton_key(self, model: ModelFolder) -> str:
        return f"{super().skeleton_key(model)} {self._adapter.scale}"

    def _prepare(self, model: ModelFolder, made: PreTrainedModel) -> Mapping[str, str]:
        super()._prepare(model, made)
        return self._adapter.apply(made, {each.name: each.shape for each in model.tensors})
