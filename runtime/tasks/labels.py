"""Labels out: from a network's scores per class to the best label and its probability."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.wire.tensors import BYTES, Tensor, bytes_tensor, numeric_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PretrainedConfig

LABEL_OUTPUTS: list[dict[str, Any]] = [
    {"name": "label", "datatype": BYTES, "shape": [-1]},
    {"name": "score", "datatype": "FP32", "shape": [-1]},
]


class Labels:
    """The class names of a model."""

    def __init__(self, config: PretrainedConfig) -> None:
        self._names: dict[int, str] = {int(key): str(v) for key, v in config.id2label.items()}

    def best(self, logits: Tensor) -> tuple[Tensor, ...]:
        """The likeliest class of each row and its softmax probability."""
        values = logits.data.astype(np.float32, copy=False)
        shifted = np.exp(values - values.max(axis=1, keepdims=True))
        probabilities = shifted / shifted.sum(axis=1, keepdims=True)
        winners = probabilities.argmax(axis=1)
        names = [self._names.get(int(index), f"LABEL_{index}").encode() for index in winners]
        scores = probabilities[np.arange(len(winners)), winners]
        return (bytes_tensor("label", names), numeric_tensor("score", scores))


def label_predictions(outputs: Sequence[Tensor]) -> list[Any]:
    """One object with label and score per row."""
    labels, scores = outputs[0].data, outputs[1].data
    return [
        {"label": label.decode(), "score": float(score)}
        for label, score in zip(labels, scores, strict=True)
    ]
