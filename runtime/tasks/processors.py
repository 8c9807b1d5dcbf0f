"""How a model's small files become its processor, and the trial whether padding changes its texts.

Convolutions over tokens see the padding in spite of the attention mask, and so do some position
numbers. Such a network gets each text by itself, without padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from registry.domain.model import OWN, Task, TaskOptions
from runtime.device.device_errors import is_device_error, is_out_of_memory
from runtime.device.device_tensor import torch_inputs
from runtime.device.queue import DeviceModel
from runtime.device.worker import DeviceWorker
from runtime.engines.building import engine_name, is_pipeline, library_path, program_path
from runtime.engines.networks.configuration import is_never_padded, read_config, task_in, tolerance
from runtime.errors import ModelInvalid
from runtime.tasks.classification import FillMask, TextClassification, TokenClassification
from runtime.tasks.embedding import Embedding
from runtime.tasks.image_classification import ImageClassification
from runtime.tasks.task import PaddedBatching, Processor
from runtime.tasks.text import TextEncoder, TextInputs, TextModel
from runtime.tasks.text_generation import TextGeneration, TextOutputs
from runtime.tasks.text_to_text import TextToText

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
    return Tabular(engine, declared, allowed)


SHORT_TEXT: Final = "a"
LONG_TEXT: Final = "a few words more than that"


class PaddingTrials:
    """Tries each class of networks once, with the weights of its first model."""

    def __init__(self) -> None:
        self._changed: dict[type, bool] = {}

    async def try_out(
        self, network: Any, processor: Processor, device: DeviceWorker, model: DeviceModel
    ) -> None:
        """Have texts computed one by one, if padding beside a text changes its results.

        Networks that generate text are tried by their engine.
        """
        if not isinstance(processor, TextInputs) or isinstance(processor, TextOutputs):
            return
        batching = processor.batching
        kind = type(network)
        if kind not in self._changed:
            trial = partial(is_changed_by_padding, network, processor.encoder, batching)
            self._changed[kind] = (await device.run(trial, model=model)).value
        if self._changed[kind]:
            model.max_rows = 1
            if not isinstance(network.forward, WithoutPadding):
                network.forward = WithoutPadding(network.forward)


def is_changed_by_padding(
    network: PreTrainedModel, encoder: TextEncoder, batching: PaddedBatching
) -> bool:
    """Whether a short text has other results beside a longer one; in the device's thread.

    A network that fails with both gets each text alone, too.
    """
    if is_never_padded(network.config):
        return True
    short, longer = encoder.encode([SHORT_TEXT]), encoder.encode([LONG_TEXT])
    alone = network(**torch_inputs(short, network))[0][0]
    try:
        together = network(**torch_inputs(batching.join([short, longer]), network))[0][0]
    except Exception as error:  # networks fail in different ways
        if is_device_error(error) or is_out_of_memory(error):
            raise
        return True
    if alone.shape != together.shape:  # a row for each token
        tokens = len(alone)
        together = together[-tokens:] if batching.pads_left else together[:tokens]
    distance = (alone - together).float().norm() / alone.float().norm().clamp(min=1e-30)
    return float(distance) > tolerance(network)


class WithoutPadding:
    """A network's `forward` that gives a single text to it without its padding."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self._forward = forward

    def __call__(self, attention_mask: torch.Tensor, **inputs: Any) -> Any:
        used = attention_mask[0].nonzero().flatten()
        width = attention_mask.shape[1]
        if len(attention_mask) != 1 or len(used) in (0, width):
            return self._forward(attention_mask=attention_mask, **inputs)
        begin, end = int(used[0]), int(used[-1]) + 1
        trimmed = {
            name: value[:, begin:end] if getattr(value, "shape", None) == (1, width) else value
            for name, value in inputs.items()
        }
        outputs = self._forward(attention_mask=attention_mask[:, begin:end], **trimmed)
        for name, value in outputs.items():
            if torch.is_tensor(value) and value.dim() == 3 and value.shape[1] == end - begin:
                outputs[name] = torch.nn.functional.pad(value, (0, 0, begin, width - end))
        return outputs
