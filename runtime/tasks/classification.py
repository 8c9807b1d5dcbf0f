"""Classification: labels from a network's scores, and the processor of text classification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.tasks.text import TextEncoder, TextInputs, torch_inputs
from runtime.wire.tensors import BYTES, Tensor, bytes_tensor, numeric_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import PretrainedConfig, PreTrainedModel

    from runtime.sandbox.pool import Sandbox
    from runtime.tasks.tensor_batching import PaddedBatching


class LabelOutputs:
    """The shared part of classification processors: logits, and labels from them."""

    batching: PaddedBatching

    def __init__(self, config: PretrainedConfig) -> None:
        self._labels: dict[int, str] = {int(key): str(v) for key, v in config.id2label.items()}

    def infer(self, network: PreTrainedModel, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        logits = network(**torch_inputs(inputs, network, self.batching.required[0])).logits
        return (numeric_tensor("logits", logits.float().cpu().numpy()),)

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The likeliest class of each row and its softmax probability."""
        values = outputs[0].data.astype(np.float32, copy=False)
        shifted = np.exp(values - values.max(axis=1, keepdims=True))
        probabilities = shifted / shifted.sum(axis=1, keepdims=True)
        best = probabilities.argmax(axis=1)
        labels = [self._labels.get(int(index), f"LABEL_{index}").encode() for index in best]
        scores = probabilities[np.arange(len(best)), best]
        return (bytes_tensor("label", labels), numeric_tensor("score", scores))

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        labels, scores = outputs[0].data, outputs[1].data
        return [
            {"label": label.decode(), "score": float(score)}
            for label, score in zip(labels, scores, strict=True)
        ]

    def output_types(self) -> list[dict[str, Any]]:
        return [
            {"name": "label", "datatype": BYTES, "shape": [-1]},
            {"name": "score", "datatype": "FP32", "shape": [-1]},
        ]


class TextClassification(TextInputs, LabelOutputs):
    def __init__(
        self, folder: Path, config: PretrainedConfig, sandbox: Sandbox | None = None
    ) -> None:
        TextInputs.__init__(self, TextEncoder(folder, config, sandbox=sandbox))
        LabelOutputs.__init__(self, config)
        self.batching = self.encoder.batching()

    def warm_up(self, network: PreTrainedModel) -> None:
        self.infer(network, self.preprocess(["warm"]))
