"""Answers in the forms of KServe's Hugging Face server: one output, `output-0`.

Numbers for classes are a Python dictionary, in V2 as its text. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from common.inference_protocol.tensors import BYTES, Tensor, numeric_tensor
from registry.domain.model import Scores

if TYPE_CHECKING:
    import numpy.typing as npt

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


def token_answers(scores: Scores, values: npt.NDArray[np.float32]) -> Tensor:
    """Of each row and mask: a dictionary for each token of the vocabulary, with its number.

    Probabilities are texts there.
    """
    form = "{{{}: '{:.4f}'}}" if scores is Scores.ALL else "{{{}: {!r}}}"
    texts = [
        form.format(token, value).encode()
        for row in values.reshape(-1, values.shape[-1]).tolist()
        for token, value in enumerate(row)
    ]
    return Tensor(OUTPUT, BYTES, np.array(texts, dtype=object).reshape(values.shape))


def read_numbers(text: bytes) -> dict[str, float | str]:
    """The dictionary of a text, as JSON has it."""
    pairs = (pair.partition(": ") for pair in text.decode()[1:-1].split(", "))
    return {
        key: value.strip("'") if value.startswith("'") else float(value) for key, _, value in pairs
    }


def class_predictions(outputs: Sequence[Tensor]) -> list[Any]:
    """V1 predictions from the V2 output of `class_answers` or `token_answers`."""
    data = outputs[0].data
    if outputs[0].datatype != BYTES:
        return list(data.tolist())
    return _read_nested(data)


def _read_nested(data: Any) -> list[Any]:
    if data.ndim > 1:
        return [_read_nested(each) for each in data]
    return [read_numbers(each) for each in data]
