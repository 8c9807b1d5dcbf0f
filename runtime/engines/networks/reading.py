"""How a network's tensors are made of a checkpoint's, as `from_pretrained` makes them.

Names of stored tensors are often not those of the network: transformers renames and joins them by a
mapping for each architecture (`transformers.conversion_mapping`), which is applied here, and joined
tensors are computed by its own operations. Each gets the type that the network gives it: that of
the configuration, or 32 bits where transformers keeps them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import torch
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    build_glob_alternation,
    dot_natural_key,
    rename_source_key,
)

from runtime.errors import ModelInvalid
from runtime.weights.converted_weights import DTYPE_NAMES, Conversion
from runtime.weights.safetensors_files import DTYPES, StoredTensor

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

FINISHED: Final = "network:"
"""Before the name in the network, as the stored name of a tensor that was made of stored ones."""
_WEIGHT: Final = ".weight"
_DEFAULT_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def find_layer(network: PreTrainedModel, path: str) -> str | None:
    """The path of the layer in the network; None without it."""
    prefix = f"{network.base_model_prefix}."
    for each in (path, path.removeprefix(prefix), prefix + path):
        try:
            network.get_submodule(each)
        except AttributeError:
            continue
        return each
    return None


@dataclass(slots=True)
class Join:
    """Stored tensors that become one or several tensors of the network together. Mutable."""

    converter: WeightConverter
    target: str
    """Name of the first tensor that is made."""
    sources: dict[str, list[str]] = field(default_factory=dict)
    """Stored names by the converter's pattern that they fit, in the order of reading."""


@dataclass(frozen=True, slots=True)
class NameMap:
    """What stored tensors are in a network; those that it has no use for are left out."""

    held: dict[str, str]
    """Stored names of the network's tensors that are taken as they are, by their own names."""
    joins: list[Join]


class StoredNames:
    """The names of one network. For one reading: some of transformers' rules have a memory."""

    def __init__(self, network: PreTrainedModel) -> None:
        mapping = get_model_conversion_mapping(network)
        self._network = network
        self.tensors = network.state_dict()
        self._renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
        self._converters = [each for each in mapping if isinstance(each, WeightConverter)]
        self._by_pattern = {
            pattern: each for each in self._converters for pattern in each.source_patterns
        }

    def map(self, names: Iterable[str], known: Mapping[str, str] | None = None) -> NameMap:
        """Where the tensors of these names belong.

        `known`: names in the network of tensors that are no part of the checkpoint.
        """
        held, joins, known = {}, dict[str, Join](), known or {}
        for stored in sorted(names, key=dot_natural_key):
            if stored in known or stored.startswith(FINISHED):
                held[known.get(stored, stored.removeprefix(FINISHED))] = stored
                continue
            name, pattern = self._rename(stored)
            if name not in self.tensors:
                continue
            if pattern is None:
                held.setdefault(name, stored)
                continue
            join = joins.setdefault(name, Join(self._by_pattern[pattern], name))
            join.sources.setdefault(pattern, []).append(stored)
        return NameMap(held, list(joins.values()))

    def layer(self, path: str) -> str | None:
        """The path in the network of a layer of a checkpoint; None if there is no such layer.

        Raises ModelInvalid for a layer that is a part of one layer of the network.
        """
        if (found := find_layer(self._network, path)) is not None:
            return found
        name, pattern = self._rename(f"{path}{_WEIGHT}")
        if pattern is not None:
            raise ModelInvalid(
                f"{path} is a part of {re.sub(r'[.]weight$', '', name)}, where networks of"
                f" {self._network.config.model_type} join several layers; such parts can have"
                " no adapters: merge the adapter into its base"
            )
        return find_layer(self._network, name.removesuffix(_WEIGHT))

    def _rename(self, stored: str) -> tuple[str, str | None]:
        """The name in the network, and the converter's pattern that it fits, if one does."""
        prefix = self._network.base_model_prefix
        found: tuple[str, str | None] = rename_source_key(
            stored, self._renamings, self._converters, prefix, self.tensors
        )
        if found[0] not in self.tensors and stored in self.tensors:
            return stored, None
        return found


@dataclass(frozen=True, slots=True)
class Reading:
    """Where each of a network's tensors comes from."""

    made: dict[str, StoredTensor]
    """By their names in the network; under the name that they have after the conversions."""
    conversions: tuple[Conversion, ...] | None
    """None: stored tensors are taken as they are, with those that the network has no use for."""


def dtype_of(config: PretrainedConfig, tensors: Sequence[StoredTensor]) -> torch.dtype:
    """The type of the configuration, else that of the first stored tensor of plain floats."""
    if config.dtype in _DEFAULT_TYPES:
        return config.dtype  # type: ignore[no-any-return]  # untyped in transformers
    stored = (DTYPES[each.dtype] for each in sorted(tensors, key=lambda each: each.name))
    return next((dtype for dtype in stored if dtype in _DEFAULT_TYPES), torch.float32)


def plan_reading(
    network: PreTrainedModel, tensors: Sequence[StoredTensor], known: Mapping[str, str]
) -> Reading:
    """The reading of a checkpoint; raises ModelInvalid if tensors cannot be joined.

    `known`: names in the network of tensors that are no part of the checkpoint; they stay as they
    are, without conversion.
    """
    stored = {tensor.name: tensor for tensor in tensors}
    read = StoredNames(network)
    names, types = read.map(stored, known), _Types(network, read.tensors)
    made = {
        name: stored[source] if source in known else types.cast(name, stored[source])
        for name, source in names.held.items()
    }
    conversions = [
        Conversion((source,), (made[name],))
        for name, source in names.held.items()
        if source not in known
    ]
    for join in names.joins:
        joined = _join(join, stored, types, network.config)
        conversions.append(joined)
        made |= {each.name.removeprefix(FINISHED): each for each in joined.results}
    is_as_stored = not names.joins and all(
        made[name].dtype == stored[source].dtype for name, source in names.held.items()
    )
    return Reading(made, None if is_as_stored else tuple(conversions))


class _Types:
    """The type of each tensor of a network, as transformers chooses it."""

    def __init__(self, network: PreTrainedModel, tensors: Mapping[str, torch.Tensor]) -> None:
        self.tensors = tensors
        kept = network._get_dtype_plan(network.config.dtype)
        self._kept = build_glob_alternation(list(kept))[0] if kept else None

    def of(self, name: str) -> torch.dtype:
        if self._kept is not None and self._kept.search(name):
            return torch.float32
        return self.tensors[name].dtype

    def cast(self, name: str, stored: StoredTensor) -> StoredTensor:
        dtype = self.of(name)
        count = stored.size_bytes // DTYPES[stored.dtype].itemsize
        return StoredTensor(
            stored.name, DTYPE_NAMES[dtype], stored.shape, 0, count * dtype.itemsize
        )


@dataclass(frozen=True, slots=True)
class _Shapes:
    """In place of the network in transformers' operations, which ask it for shapes alone."""

    tensors: Mapping[str, torch.Tensor]

    def get_parameter(self, name: str) -> torch.Tensor:
        return self.tensors[name]


def _join(
    join: Join, stored: Mapping[str, StoredTensor], types: _Types, config: PretrainedConfig
) -> Conversion:
    tensors, dtype, shapes = types.tensors, types.of(join.target), _Shapes(types.tensors)

    def run(sources: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        converter, given = deepcopy(join.converter), iter(sources)
        for pattern, names in join.sources.items():
            for name in names:
                tensor: object = next(given).to(dtype)
                converter.add_tensor(join.target, name, pattern, tensor)
        made = converter.convert(join.target, model=shapes, config=config)
        lone = {name: each[0] if isinstance(each, list) else each for name, each in made.items()}
        return {name: tensor for name, tensor in lone.items() if name in tensors}

    sources = tuple(name for names in join.sources.values() for name in names)
    empty = [
        torch.empty(stored[each].shape, dtype=DTYPES[stored[each].dtype], device="meta")
        for each in sources
    ]
    try:
        planned = run(empty)
    except Exception as error:  # operations fail on odd shapes in different ways
        raise ModelInvalid(
            f"{config.model_type}: {join.target} cannot be made of {len(sources)} stored tensors"
            f" such as {list(sources[:2])}: {error}"
        ) from error
    results = tuple(_result(name, tensor) for name, tensor in planned.items())

    def convert(given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        made = run(given)
        return [made[name] for name in planned]

    return Conversion(sources, results, convert)


def _result(name: str, tensor: torch.Tensor) -> StoredTensor:
    return StoredTensor(
        f"{FINISHED}{name}", DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), 0, tensor.nbytes
    )


def may_be_missing(network: PreTrainedModel, name: str) -> bool:
    """Whether transformers computes the tensor where a checkpoint lacks it.

    So it does with what the architecture names, and with numbers that are no weights.
    """
    if name in (network._keys_to_ignore_on_save or ()):
        return True
    patterns = network._keys_to_ignore_on_load_missing or ()
    tensor = network.state_dict()[name]
    return not tensor.is_floating_point() or any(re.search(each, name) for each in patterns)
