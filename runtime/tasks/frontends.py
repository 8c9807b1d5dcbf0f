"""Which class serves which task, and how a model's small files become its frontend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from registry.model import Task
from runtime.configuration import read_config, task_of
from runtime.programs.program import program_path
from runtime.tasks.embedding import Embedding
from runtime.tasks.image_classification import ImageClassification
from runtime.tasks.tensors import TensorProgram
from runtime.tasks.text_classification import TextClassification
from runtime.tasks.text_generation import TextGeneration
from runtime.tasks.text_to_text import TextToText

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from runtime.tasks.task import Frontend

FRONTENDS: Mapping[Task, Callable[[Path, Any], Frontend]] = {
    Task.TEXT_EMBEDDING: Embedding,
    Task.TEXT_TO_TEXT: TextToText,
    Task.TEXT_GENERATION: TextGeneration,
    Task.TEXT_CLASSIFICATION: TextClassification,
    Task.IMAGE_CLASSIFICATION: ImageClassification,
}


def load_frontend(folder: Path, declared: Task | None) -> Frontend:
    """The frontend of the model whose small files are in `folder`; raises ModelInvalid."""
    program = program_path(folder)
    if program is not None:
        return TensorProgram(program, declared)
    config = read_config(folder)
    return FRONTENDS[task_of(config, declared)](folder, config)
