"""Text classification: the likeliest label of each text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runtime.tasks.labels import LABEL_OUTPUTS, Labels, label_predictions
from runtime.tasks.text import (
    TEXT_INPUT,
    TextEncoder,
    texts_of_instances,
    texts_of_tensors,
    torch_inputs,
)
from runtime.wire.tensors import Tensor, numeric_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import PretrainedConfig, PreTrainedModel


class TextClassification:
    """Texts to labels."""

    def __init__(self, folder: Path, config: PretrainedConfig) -> None:
        self._encoder = TextEncoder(folder, config)
        self.batching = self._encoder.batching()
        self._labels = Labels(config)

    def read_instances(self, instances: Sequence[Any]) -> list[str]:
        """Texts of a V1 body."""
        return texts_of_instances(instances)

    def read_tensors(self, tensors: Sequence[Tensor]) -> list[str]:
        """Texts of a V2 body."""
        return texts_of_tensors(tensors)

    def preprocess(self, items: Sequence[str]) -> tuple[Tensor, ...]:
        """Tokens."""
        return self._encoder.encode(items)

    def infer(self, network: PreTrainedModel, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Scores per class."""
        logits = network(**torch_inputs(inputs, network)).logits
        return (numeric_tensor("logits", logits.float().cpu().numpy()),)

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The best label and its probability."""
        return self._labels.best(outputs[0])

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        """One object per text."""
        return label_predictions(outputs)

    def warm_up(self, network: PreTrainedModel) -> None:
        """A short text."""
        self.infer(network, self.preprocess(["warm"]))

    def input_types(self) -> list[dict[str, Any]]:
        """One string per item."""
        return [TEXT_INPUT]

    def output_types(self) -> list[dict[str, Any]]:
        """A label and a score per item."""
        return LABEL_OUTPUTS
