"""Text to text, such as translation: greedy generation by an encoder and a decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runtime.tasks.text import (
    TEXT_INPUT,
    TEXT_OUTPUT,
    TextEncoder,
    end_ids,
    text_predictions,
    texts_of_instances,
    texts_of_tensors,
    torch_inputs,
)
from runtime.wire.tensors import Tensor, numeric_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import PretrainedConfig, PreTrainedModel


class TextToText:
    """Texts to texts."""

    def __init__(self, folder: Path, config: PretrainedConfig) -> None:
        self._encoder = TextEncoder(folder, config, takes_types=False)
        self.batching = self._encoder.batching(end_ids=end_ids(folder, config))

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
        """Generate as the model's generation_config.json says."""
        output_ids = network.generate(**torch_inputs(inputs, network))
        return (numeric_tensor("output_ids", output_ids.cpu().numpy()),)

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Texts from tokens."""
        return self._encoder.decoded(outputs)

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        """One string per text."""
        return text_predictions(outputs)

    def warm_up(self, network: PreTrainedModel) -> None:
        """One token: a whole answer would cost as much as a request."""
        inputs = torch_inputs(self.preprocess(["warm"]), network)
        network.generate(**inputs, min_new_tokens=1, max_new_tokens=1)

    def input_types(self) -> list[dict[str, Any]]:
        """One string per item."""
        return [TEXT_INPUT]

    def output_types(self) -> list[dict[str, Any]]:
        """One string per item."""
        return [TEXT_OUTPUT]
