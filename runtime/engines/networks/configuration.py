"""A model's architecture and task, read from its configuration without running its code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from registry.domain.model import Task
from runtime.errors import ModelInvalid

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PretrainedConfig

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
"""The task by the suffix of the architecture's name, if the InferenceService declares none."""


def read_config(folder: Path) -> PretrainedConfig:
    """The configuration of a model; raises ModelInvalid if the model cannot be served."""
    from transformers import CONFIG_MAPPING  # heavy: only a process that loads models needs it

    fields = read_json(folder / "config.json")
    kind = fields.get("model_type")
    if kind not in CONFIG_MAPPING:
        custom = (
            " and code of its own (auto_map), which is never run" if "auto_map" in fields else ""
        )
        raise ModelInvalid(
            f"config.json has model_type {kind!r}{custom};"
            " it must be an architecture that transformers has built in"
        )
    fields.pop("auto_map", None)
    fields.pop("quantization_config", None)
    try:
        config: PretrainedConfig = CONFIG_MAPPING[kind].from_dict(fields)
    except Exception as error:  # architectures validate their configuration in different ways
        raise ModelInvalid(f"config.json is not valid for model_type {kind!r}: {error}") from error
    return config


def task_of(config: PretrainedConfig, declared: Task | None) -> Task:
    """The declared task, or the one of the configuration's architecture; raises ModelInvalid."""
    if declared is not None:
        return declared
    names = config.architectures or []
    for name in names:
        for suffix, task in TASK_OF_SUFFIX.items():
            if name.endswith(suffix):
                return task
    raise ModelInvalid(
        f"config.json names architectures {list(names)}, which imply no known task;"
        f" declare one of {[task.value for task in Task]} with the annotation pilotlight.io/task"
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of the model; raises ModelInvalid."""
    try:
        fields = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ModelInvalid(f"the model has no {path.name}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ModelInvalid(f"{path.name} is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ModelInvalid(f"{path.name} must hold a JSON object, holds {type(fields).__name__}")
    return fields
