"""A model's architecture, task and longest text, read from its configuration.

A table of positions has a row for each, but for those that its architecture leaves out: RoBERTa's
and its kin number positions from `padding_idx + 1` on, BART's from an offset. Networks with
relative or rotary positions have no table; the configuration alone says how long texts may be.
"""

from __future__ import annotations

import copy
import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from common.shown_value import kind_of
from registry.domain.model import Task
from runtime.errors import ModelInvalid, ModelUnsupported
from runtime.storage.listing import MODULES

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


_BUILD_LOCK = threading.Lock()

TASK_OF_SUFFIX = {
    "ForConditionalGeneration": Task.TEXT_TO_TEXT,
    "ForCausalLM": Task.TEXT_GENERATION,
    "LMHeadModel": Task.TEXT_GENERATION,
    "ForSequenceClassification": Task.TEXT_CLASSIFICATION,
    "ForTokenClassification": Task.TOKEN_CLASSIFICATION,
    "ForMaskedLM": Task.FILL_MASK,
    "ForImageClassification": Task.IMAGE_CLASSIFICATION,
    "Model": Task.TEXT_EMBEDDING,
}
"""The task by the suffix of a name that transformers does not list, such as an older one."""


def read_config(folder: Path) -> PretrainedConfig:
    """The configuration of a model; raises ModelInvalid if the model cannot be served."""
    from transformers import CONFIG_MAPPING  # heavy: only a process that loads models needs it

    fields = read_json(folder / "config.json")
    kind = fields.get("model_type")
    if kind not in CONFIG_MAPPING:
        custom = (
            " and code of its own (auto_map), which is never run" if "auto_map" in fields else ""
        )
        raise ModelUnsupported(
            f"config.json has model_type {kind!r}{custom};"
            " it must be an architecture that transformers has built in"
        )
    fields.pop("auto_map", None)
    fields.pop("quantization_config", None)
    try:
        # Infinity and NaN are written as objects.
        decoded = CONFIG_MAPPING[kind]._decode_special_floats(fields)
        config: PretrainedConfig = CONFIG_MAPPING[kind].from_dict(decoded)
    except Exception as error:  # architectures validate their configuration in different ways
        raise ModelInvalid(f"config.json is not valid for model_type {kind!r}: {error}") from error
    return config


def task_in(folder: Path, config: PretrainedConfig, declared: Task | None) -> Task:
    """The declared task, or what the model's files imply; raises ModelInvalid.

    Sentence-transformers' folders embed texts, whatever their network was trained for.
    """
    if declared is None and _pools(folder / MODULES):
        return Task.TEXT_EMBEDDING
    return task_of(config, declared)


def _pools(modules: Path) -> bool:
    return modules.exists() and any(
        isinstance(each, dict) and str(each.get("type")).endswith(".Pooling")
        for each in read_json_list(modules)
    )


def task_of(config: PretrainedConfig, declared: Task | None) -> Task:
    """The declared task, or the one of the configuration's architecture; raises ModelInvalid."""
    if declared is not None:
        return declared
    names = config.architectures or []
    for name in names:
        if (task := _listed_task(name)) is not None:
            return task
        for suffix, task in TASK_OF_SUFFIX.items():
            if name.endswith(suffix):
                both = config.is_encoder_decoder and task is Task.TEXT_GENERATION
                return Task.TEXT_TO_TEXT if both else task
    raise ModelInvalid(
        f"config.json names architectures {list(names)}, which imply no known task;"
        f" declare one of {[task.value for task in Task]} with the annotation pilotlight.io/task"
    )


def _listed_task(name: str) -> Task | None:
    """The first task for which transformers lists the class."""
    from transformers.models.auto import modeling_auto as auto

    lists = {
        Task.TEXT_TO_TEXT: auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        Task.TEXT_GENERATION: auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        Task.TEXT_CLASSIFICATION: auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        Task.TOKEN_CLASSIFICATION: auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
        Task.FILL_MASK: auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        Task.IMAGE_CLASSIFICATION: auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    }
    for task, classes in lists.items():
        named = (each if isinstance(each, tuple) else (each,) for each in classes.values())
        if any(name in each for each in named):
            return task
    return None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of the model; raises ModelInvalid."""
    fields = _parsed(path)
    if not isinstance(fields, dict):
        raise ModelInvalid(f"{path.name} must hold a JSON object, holds {kind_of(fields)}")
    return fields


def read_json_list(path: Path) -> list[Any]:
    """A JSON list from a file of the model; raises ModelInvalid."""
    items = _parsed(path)
    if not isinstance(items, list):
        raise ModelInvalid(f"{path.name} must hold a JSON list, holds {kind_of(items)}")
    return items


def _parsed(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ModelInvalid(f"the model has no {path.name}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelInvalid(f"{path.name} is not valid JSON: {error}") from error


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


logger = logging.getLogger(__name__)

_LIMIT_FIELDS: Final = (
    "max_position_embeddings", "n_positions", "max_encoder_position_embeddings", "max_seq_len",
    "seq_length", "max_source_positions", "max_sequence_length", "n_ctx",
)  # fmt: skip
"""Of configurations, in the order in which they are asked."""
_TABLES: Final = frozenset(
    {"position_embeddings", "position_embedding", "embed_positions", "embed_position", "wpe",
     "positional_embedding", "positions_embed", "pos_embedding"}
)  # fmt: skip
"""Names of the modules that hold a table of positions."""
_OTHER_PARTS: Final = ("vision", "visual", "image", "audio")


def position_limit(config: PretrainedConfig) -> int | None:
    """Most tokens of a text; None: any number."""
    return _least(_declared(config), _tables(config)[0])


def output_limit(config: PretrainedConfig) -> int | None:
    """Most tokens that a decoder generates after an encoder; None: any number."""
    declared = getattr(config, "max_decoder_position_embeddings", None) or _declared(config)
    return _least(declared, _tables(config)[1])


def _declared(config: PretrainedConfig) -> int | None:
    values = (getattr(_text_part(config), name, None) for name in _LIMIT_FIELDS)
    return next((each for each in values if isinstance(each, int) and each > 0), None)


def _text_part(config: PretrainedConfig) -> PretrainedConfig:
    try:
        return config.get_text_config()
    except ValueError:  # it has several
        return config


@dataclass(frozen=True, slots=True)
class _Architecture:
    """A configuration, equal to others with the same fields."""

    fields: str
    config: PretrainedConfig = field(compare=False)


def _tables(config: PretrainedConfig) -> tuple[int | None, int | None]:
    """Positions of texts, and of a decoder after an encoder."""
    text = _text_part(config)
    return _measured(_Architecture(text.to_json_string(use_diff=False), text))


@lru_cache(maxsize=64)
def _measured(architecture: _Architecture) -> tuple[int | None, int | None]:
    network = _without_weights(architecture.config)
    if network is None:
        return None, None
    texts: list[int] = []
    outputs: list[int] = []
    for name, module in network.named_modules():
        parts = name.split(".")
        is_text = not any(word in part for part in parts for word in _OTHER_PARTS)
        if parts[-1] in _TABLES and is_text and (count := _positions(module)) is not None:
            is_output = network.config.is_encoder_decoder and "decoder" in parts
            (outputs if is_output else texts).append(count)
    return min(texts, default=None), min(outputs, default=None)


def _positions(table: Any) -> int | None:
    weight = getattr(table, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 2:
        return None
    is_own_kind = isinstance(table, torch.nn.Embedding) and type(table) is not torch.nn.Embedding
    if is_own_kind:  # it numbers positions itself
        return int(weight.shape[0] - getattr(table, "offset", 0))
    padding = getattr(table, "padding_idx", None)
    return int(weight.shape[0] - (0 if padding is None else padding + 1))


def _without_weights(config: PretrainedConfig) -> PreTrainedModel | None:
    """The network, with a single layer if it can have one; None if none can be built."""
    from transformers import AutoModel

    for layers in (1, None):
        part = copy.deepcopy(config)
        try:
            if layers is not None:
                part.num_hidden_layers = layers
            with without_memory("no network can be built"):
                return AutoModel.from_config(part, dtype=None, trust_remote_code=False)
        except Exception:  # architectures check their configuration in different ways
            logger.debug("no network to find its positions by", exc_info=True)
    return None


def _least(*limits: int | None) -> int | None:
    return min((each for each in limits if each is not None), default=None)


_BEST_TOKENS: Final = ("index_topk", "indexer_budget")
"""Fields of networks that attend to so many tokens only: in longer texts padding is among them."""
_OWN_PADDING: Final = ("cpmant",)
"""Architectures that know padding by token 0 in place of a mask."""


def tolerance(network: PreTrainedModel) -> float:
    """Of results, relative to their size: rounding in 32 bits makes 1e-5, padding 1e-2."""
    return 1e-3 if network.dtype.itemsize >= 4 else 0.05


def is_never_padded(config: PretrainedConfig) -> bool:
    """Whether texts are not padded, since no short trial shows what that does to them."""
    text = config.get_text_config()
    chooses = any(getattr(text, name, None) for name in _BEST_TOKENS)
    return chooses or text.model_type in _OWN_PADDING
