"""Classification of texts and tokens, and filling masks; answers as of KServe's server, too.

KServe's Hugging Face server has one output, `output-0`; numbers for classes are a Python
dictionary, in V2 as its text. Without the option, V1 predictions of tokens and masks are those of
the pipelines of transformers (`token-classification` without aggregation, `fill-mask`) without
`sequence`, `start` and `end`; V2 outputs have one JSON text per input.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import (
    BYTES,
    Tensor,
    bytes_tensor,
    named_arrays,
    numeric_tensor,
)
from registry.domain.model import Answers, Scores, TaskOptions
from runtime.device.device_tensor import torch_inputs
from runtime.errors import ModelInvalid
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
    return np.exp(-np.logaddexp(np.float32(0), -values))  # no overflow on either side


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


TOP_TOKENS: Final = 5
"""Tokens per mask, the default of the pipeline of transformers."""


class _TokenTask(TextInputs):
    """A text in, a JSON list out; named by `output`."""

    output: str

    def __init__(self, model: TextModel) -> None:
        super().__init__(model)
        self._scores = model.options.scores
        self._is_kserve = model.options.answers is Answers.KSERVE
        self._wants_numbers = self._is_kserve and self._scores is not Scores.BEST

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        arrays = named_arrays(outputs)
        return (self._as_kserve(arrays),) if self._is_kserve else self._as_json(self._rows(arrays))

    @abstractmethod
    def _rows(self, arrays: Mapping[str, Any]) -> list[Any]:
        """The answer to each text."""

    @abstractmethod
    def _as_kserve(self, arrays: Mapping[str, Any]) -> Tensor: ...

    @abstractmethod
    def _kserve_types(self) -> list[dict[str, Any]]: ...

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        if self._is_kserve:
            return class_predictions(outputs)
        return [json.loads(value) for value in outputs[0].data]

    def output_types(self) -> list[dict[str, Any]]:
        if self._is_kserve:
            return self._kserve_types()
        return [{"name": self.output, "datatype": BYTES, "shape": [-1]}]

    def _as_json(self, rows: Sequence[Any]) -> tuple[Tensor, ...]:
        texts = [json.dumps(row, ensure_ascii=False).encode() for row in rows]
        return (bytes_tensor(self.output, texts),)


class FillMask(_TokenTask):
    output = "fillings"

    def __init__(self, model: TextModel) -> None:
        super().__init__(model)
        tokenizer = self.encoder.tokenizer
        if tokenizer.mask_token is None or tokenizer.mask_token_id is None:
            raise ModelInvalid("the model's tokenizer has no mask token, which fill-mask needs")
        if self._wants_numbers:
            raise ModelInvalid(
                "fill-mask is not answered with numbers, which would be one for each token of the"
                " vocabulary: declare it without --return_probabilities and --return_raw_logits"
                " (pilotlight.io/scores)"
            )
        self._mask = self.warm_text = tokenizer.mask_token
        self._mask_id: int = tokenizer.mask_token_id

    def preprocess(self, items: Sequence[str]) -> tuple[Tensor, ...]:
        """Raises InvalidRequest for a text without a mask among its tokens."""
        inputs = super().preprocess(items)
        has_mask = (named_arrays(inputs)["input_ids"] == self._mask_id).any(axis=1)
        if not has_mask.all():
            index = int(has_mask.argmin())
            raise InvalidRequest(
                f"each text must have {self._mask} within its first"
                f" {self.encoder.max_tokens} tokens, text {index} has not"
            )
        return inputs

    def infer(self, network: PreTrainedModel, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The likeliest tokens of each mask and their probabilities, of shape [rows, tokens, n].

        Chosen here, so that outputs are small; zero where no mask is.
        """
        arguments = torch_inputs(inputs, network)
        token_ids = arguments["input_ids"]
        is_mask = token_ids == self._mask_id
        logits = network(**arguments).logits[is_mask].float()
        count = min(TOP_TOKENS, logits.shape[-1])
        best = logits.softmax(-1).topk(count, dim=-1)
        shape = (*token_ids.shape, count)
        tokens = torch.zeros(shape, dtype=torch.int64, device=token_ids.device)
        scores = torch.zeros(shape, dtype=torch.float32, device=token_ids.device)
        tokens[is_mask], scores[is_mask] = best.indices, best.values
        return (
            numeric_tensor("tokens", tokens.cpu().numpy()),
            numeric_tensor("scores", scores.cpu().numpy()),
            _input_ids(token_ids),
        )

    def _as_kserve(self, arrays: Mapping[str, Any]) -> Tensor:
        best = [
            tokens[token_ids == self._mask_id, 0]
            for token_ids, tokens in zip(arrays["input_ids"], arrays["tokens"], strict=True)
        ]
        texts = [self.encoder.tokenizer.decode(each.tolist()).encode() for each in best]
        return bytes_tensor(OUTPUT, texts)

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        if self._is_kserve:
            return [value.decode() for value in outputs[0].data]
        return super().predictions(outputs)

    def _rows(self, arrays: Mapping[str, Any]) -> list[Any]:
        rows = zip(arrays["input_ids"], arrays["tokens"], arrays["scores"], strict=True)
        return [self._fillings(*row) for row in rows]

    def _fillings(self, token_ids: Any, tokens: Any, scores: Any) -> list[Any]:
        """Of one text: a list, or with several masks a list for each."""
        found = [
            [
                {"score": _score(score), "token": int(token), "token_str": self._text(token)}
                for token, score in zip(tokens[position], scores[position], strict=True)
            ]
            for position in np.flatnonzero(token_ids == self._mask_id)
        ]
        return found[0] if len(found) == 1 else found

    def _kserve_types(self) -> list[dict[str, Any]]:
        return output_type(BYTES)

    def _text(self, token: Any) -> str:
        return str(self.encoder.tokenizer.decode([int(token)]))


class TokenClassification(_TokenTask):
    output = "entities"

    def __init__(self, model: TextModel) -> None:
        super().__init__(model)
        self._labels: dict[int, str] = {
            int(key): str(v) for key, v in model.config.id2label.items()
        }
        known = self.encoder.tokenizer
        ends = (known.cls_token_id, known.sep_token_id, known.bos_token_id, known.eos_token_id)
        self._padding = known.pad_token_id
        self._left_out = [each for each in (*ends, known.pad_token_id) if each is not None]

    def infer(self, network: PreTrainedModel, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The likeliest class of each token and its probability, of shape [rows, tokens]."""
        arguments = torch_inputs(inputs, network)
        logits = network(**arguments).logits.float()
        if self._wants_numbers:
            return (
                numeric_tensor("logits", logits.cpu().numpy()),
                _input_ids(arguments["input_ids"]),
            )
        best = logits.softmax(-1).max(-1)
        return (
            numeric_tensor("classes", best.indices.cpu().numpy()),
            numeric_tensor("scores", best.values.cpu().numpy()),
            _input_ids(arguments["input_ids"]),
        )

    def _as_kserve(self, arrays: Mapping[str, Any]) -> Tensor:
        """Of each token, as many as the longest text of the request has."""
        used = np.flatnonzero((arrays["input_ids"] != self._padding).any(axis=0))
        columns = slice(used[0], used[-1] + 1) if used.size else slice(None)
        if not self._wants_numbers:
            return numeric_tensor(OUTPUT, arrays["classes"][:, None, columns])
        values = arrays["logits"][:, columns]
        values = softmax(values) if self._scores is Scores.ALL else values
        return class_answers(self._scores, values)

    def _rows(self, arrays: Mapping[str, Any]) -> list[Any]:
        rows = zip(arrays["input_ids"], arrays["classes"], arrays["scores"], strict=True)
        return [self._entities(*row) for row in rows]

    def _kserve_types(self) -> list[dict[str, Any]]:
        if self._wants_numbers:
            return output_type(BYTES, -1)
        return output_type("INT64", 1, -1)

    def _entities(self, token_ids: Any, classes: Any, scores: Any) -> list[dict[str, Any]]:
        """Tokens of a class other than `O`, which means none."""
        words = self.encoder.tokenizer.convert_ids_to_tokens(token_ids.tolist())
        is_special = np.isin(token_ids, self._left_out)
        # Positions are those of the text, which padding may stand before.
        first = int((token_ids != self._padding).argmax()) if self.batching.pads_left else 0
        labels = [self._labels.get(int(each), f"LABEL_{each}") for each in classes]
        return [
            {
                "entity": label,
                "score": _score(scores[index]),
                "index": index - first,
                "word": words[index],
            }
            for index, label in enumerate(labels)
            if label != "O" and not is_special[index]
        ]


def _score(value: Any) -> float | None:
    """None for NaN, which JSON cannot write: what a network with overflowing numbers gives."""
    return float(value) if math.isfinite(value) else None


def _input_ids(token_ids: torch.Tensor) -> Tensor:
    return numeric_tensor("input_ids", token_ids.cpu().numpy())
