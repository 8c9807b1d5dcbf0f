"""A model's architecture and task, read from its configuration without running its code."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from common.shown_value import kind_of
from registry.domain.model import Task
from runtime.errors import ModelInvalid, ModelUnsupported
from runtime.storage.listing import MODULES

if TYPE_CHECKING:
    from transformers import PretrainedConfig

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
