"""The processor class of each task, and how a model's small files become its processor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from registry.domain.model import OWN, Task, TaskOptions
from runtime.engines.building import engine_name, is_pipeline, library_path, program_path
from runtime.engines.networks.configuration import read_config, task_in
from runtime.errors import ModelInvalid
from runtime.tasks.classification import TextClassification
from runtime.tasks.embedding import Embedding
from runtime.tasks.image_classification import ImageClassification
from runtime.tasks.task import Processor
from runtime.tasks.text import TextModel
from runtime.tasks.text_generation import TextGeneration
from runtime.tasks.text_to_text import TextToText
from runtime.tasks.token_tasks import FillMask, TokenClassification

if TYPE_CHECKING:
    from runtime.sandbox.sandbox_processes import Sandbox

TEXT_PROCESSORS: Mapping[Task, Callable[[TextModel], Processor]] = {
    Task.TEXT_EMBEDDING: Embedding,
    Task.TEXT_TO_TEXT: TextToText,
    Task.TEXT_GENERATION: TextGeneration,
    Task.TEXT_CLASSIFICATION: TextClassification,
    Task.TOKEN_CLASSIFICATION: TokenClassification,
    Task.FILL_MASK: FillMask,
}


def load_processor(
    folder: Path, declared: Task | None, sandbox: Sandbox | None = None, options: TaskOptions = OWN
) -> Processor:
    """The processor of the model whose small files are in `folder`; raises ModelInvalid.

    Without a sandbox, tokenizers with unusual expressions and chat templates are refused.

    The modules for exported programs, image generation and libraries are imported with the first
    such model.
    """
    if (library := library_path(folder)) is not None:
        return _library_processor(library, declared)
    program = program_path(folder)
    if program is not None:
        from runtime.tasks.tensor_task import TensorProgram

        return TensorProgram(program, declared)
    if is_pipeline(folder):
        from runtime.tasks.text_to_image import TextToImage

        return TextToImage(folder, declared)
    config = read_config(folder)
    task = task_in(folder, config, declared)
    if task is Task.IMAGE_CLASSIFICATION:
        return ImageClassification(folder, config, options)
    if task not in TEXT_PROCESSORS:
        raise ModelInvalid(f"task {task.value!r} needs a pipeline of diffusers (model_index.json)")
    return TEXT_PROCESSORS[task](TextModel(folder, config, sandbox, options))


def _library_processor(path: Path, declared: Task | None) -> Processor:
    engine = engine_name(path)
    if engine == "onnx":
        from runtime.tasks.tensor_task import OnnxTask

        return OnnxTask(path, declared)
    from runtime.tasks.tabular import Tabular

    allowed = (Task.TABULAR_CLASSIFICATION,) if engine == "sklearn" else ()
    return Tabular(path, engine, declared, allowed)
