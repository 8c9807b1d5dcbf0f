"""Classification: labels from a network's scores, and answers as of KServe's Hugging Face server.

KServe's have one output, `output-0`; numbers for classes are a Python dictionary, in V2 as its
text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from common.inference_protocol.tensors import BYTES, Tensor, bytes_tensor, numeric_tensor
from registry.domain.model import Answers, Scores, TaskOptions
from runtime.device.device_tensor import torch_inputs
from runtime.tasks.task import PaddedBatching, Processor
from runtime.tasks.text import TextInputs, TextModel

if TYPE_CHECKING:
    import numpy.typing as npt
    from transformers import PretrainedConfig, PreTrainedModel


OUTPUT: Final = "output-0"
PROBABILITY_DIGITS: Final = 4


def output_type(datatype: str, *more: int) -> list[dict[str, Any]]:
    return [{"name": OUTPUT, "datatype": datatype, "shape": [-1, *more]}]


def class_answers(scores: Scores, values: npt.NDArray[np.float32]) -> Tensor:
    """Of each row: the index of its best class, or a number for each class."""
    if scores is Scores.BEST:
        return numeric_tensor(OUTPUT, values.argmax(axis=-1).astype(np.int64))
    digits = PROBABILITY_DIGITS if scores is Scores.ALL else None
    rows = values.reshape(-1, values.shape[-1]).tolist()
    texts = [_text(row, digits).encode() for row in rows]
    return Tensor(OUTPUT, BYTES, np.array(texts, dtype=object).reshape(values.shape[:-1]))


def _text(values: Iterable[float], digits: int | None) -> str:
    shown = values if digits is None else (float(f"{each:.{digits}f}") for each in values)
    return str(dict(enumerate(shown)))


def read_numbers(text: bytes) -> dict[str, float]:
    """The dictionary of a text, as JSON has it."""
    pairs = (pair.partition(": ") for pair in text.decode()[1:-1].split(", "))
    return {key: float(value) for key, _, value in pairs}


def class_predictions(outputs: Sequence[Tensor]) -> list[Any]:
    """V1 predictions from the V2 output of `class_answers`."""
    data = outputs[0].data
    if outputs[0].datatype != BYTES:
        return list(data.tolist())
    return _read_nested(data)


def _read_nested(data: Any) -> list[Any]:
    if data.ndim > 1:
        return [_read_nested(each) for each in data]
    return [read_numbers(each) for each in data]


Logits: TypeAlias = "npt.NDArray[np.float32]"


def scores_of(config: PretrainedConfig) -> Callable[[Logits], Logits]:
    """From logits to scores of each row's classes, as transformers' `TextClassificationPipeline`.

    By the softmax; the sigmoid where labels do not exclude each other; unchanged for a regression.
    """
    if config.problem_type == "regression":
        return lambda logits: logits
    if config.problem_type == "multi_label_classification" or config.num_labels == 1:
        return sigmoid
    return softmax


def sigmoid(values: Logits) -> Logits:
    found: Logits = np.exp(-np.logaddexp(np.float32(0), -values))  # no overflow on either side
    return found


def softmax(values: Logits) -> Logits:
    shifted = np.exp(values - values.max(axis=-1, keepdims=True))
    probabilities: Logits = shifted / shifted.sum(axis=-1, keepdims=True)
    return probabilities


class LabelOutputs(Processor):
    """The shared part of classification processors: logits, and labels from them."""

    batching: PaddedBatching

    def __init__(self, config: PretrainedConfig, options: TaskOptions) -> None:
        self._labels: dict[int, str] = {
            int(key): str(v) for key, v in (config.id2label or {}).items()
        }
        self._config = config
        self._scores = scores_of(config)  # a configuration is slow to read
        self._options = options

    def infer(self, network: PreTrainedModel, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        logits = network(**torch_inputs(inputs, network, self.batching.required[0])).logits
        return (numeric_tensor("logits", logits.float().cpu().numpy()),)

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Each row's best label and its score, or those of all labels, the best first."""
        logits = outputs[0].data.astype(np.float32, copy=False)
        wanted = self._options.scores
        scores = logits if wanted is Scores.LOGITS else self._scores(logits)
        if self._options.answers is Answers.KSERVE:
            return (class_answers(wanted, scores),)
        if wanted is Scores.BEST:
            best = scores.argmax(axis=1)
            found = scores[np.arange(len(best)), best]
            return (bytes_tensor("label", self._names(best)), numeric_tensor("score", found))
        order = np.argsort(-scores, axis=1, kind="stable")
        labels = np.array(self._names(order.ravel()), dtype=object).reshape(order.shape)
        sorted_scores = np.take_along_axis(scores, order, axis=1)
        return (Tensor("label", BYTES, labels), numeric_tensor("score", sorted_scores))

    def _names(self, classes: npt.NDArray[Any]) -> list[bytes]:
        return [self._labels.get(int(each), f"LABEL_{each}").encode() for each in classes]

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        """An object with label and score for each row, or a list of them for all labels."""
        if self._options.answers is Answers.KSERVE:
            return class_predictions(outputs)
        labels, scores = outputs[0].data, outputs[1].data
        if labels.ndim == 1:
            return _scored(labels, scores)
        return [_scored(*row) for row in zip(labels, scores, strict=True)]

    def output_types(self) -> list[dict[str, Any]]:
        is_best = self._options.scores is Scores.BEST
        if self._options.answers is Answers.KSERVE:
            return output_type("INT64" if is_best else BYTES)
        shape = [-1] if is_best else [-1, self._config.num_labels]
        return [
            {"name": "label", "datatype": BYTES, "shape": shape},
            {"name": "score", "datatype": "FP32", "shape": shape},
        ]


def _scored(labels: npt.NDArray[Any], scores: npt.NDArray[Any]) -> list[dict[str, Any]]:
    return [
        {"label": label.decode(), "score": float(score)}
        for label, score in zip(labels, scores, strict=True)
    ]


class TextClassification(LabelOutputs, TextInputs):
    def __init__(self, model: TextModel) -> None:
        TextInputs.__init__(self, model)
        LabelOutputs.__init__(self, model.config, model.options)
        self._lacks_padding = model.config.get_text_config().pad_token_id is None

    def infer(self, network: PreTrainedModel, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if self._lacks_padding:  # a causal network classifies at the last token before padding
            text_config = network.config.get_text_config()
            text_config.pad_token_id = self.encoder.tokenizer.pad_token_id
        return LabelOutputs.infer(self, network, inputs)
