"""Text to text, such as translation: greedy generation by an encoder and a decoder."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.protocols.tensors import BYTES, Tensor, bytes_tensor, numeric_tensor
from runtime.tasks.text import (
    TEXT_INPUT,
    TextEncoder,
    end_ids,
    texts_of_instances,
    texts_of_tensors,
    torch_inputs,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import PretrainedConfig, PreTrainedModel


class TextToText:
    """Texts to texts."""

    def __init__(self, folder: Path, config: PretrainedConfig) -> None:
        self._encoder = TextEncoder(folder, config)
        joining = self._encoder.joining(end_ids=end_ids(folder, config))
        rules = {name: rule for name, rule in joining.rules.items() if name != "token_type_ids"}
        self.joining = replace(joining, rules=rules)

    def read_instances(self, instances: Sequence[Any]) -> list[str]:
        """Texts of a V1 body."""
        return texts_of_instances(instances)

    def read_tensors(self, tensors: Sequence[Tensor]) -> list[str]:
        """Texts of a V2 body."""
        return texts_of_tensors(tensors)

    def preprocess(self, items: Sequence[str]) -> tuple[Tensor, ...]:
        """Tokens; encoders of this kind know no token types."""
        encoded = self._encoder.encode(items)
        return tuple(tensor for tensor in encoded if tensor.name != "token_type_ids")

    def infer(self, network: PreTrainedModel, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Generate as the model's generation_config.json says."""
        output_ids = network.generate(**torch_inputs(inputs, network))
        return (numeric_tensor("output_ids", output_ids.cpu().numpy()),)

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Texts from tokens."""
        token_ids = outputs[0].data.astype(np.int64, copy=False)
        texts = self._encoder.tokenizer.batch_decode(token_ids, skip_special_tokens=True)
        return (bytes_tensor("text", [text.encode() for text in texts]),)

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        """One string per text."""
        return [value.decode() for value in outputs[0].data]

    def warm_up(self, network: PreTrainedModel) -> None:
        """One token: a whole answer would cost as much as a request."""
        inputs = torch_inputs(self.preprocess(["warm"]), network)
        network.generate(**inputs, min_new_tokens=1, max_new_tokens=1)

    def input_types(self) -> list[dict[str, Any]]:
        """One string per item."""
        return [TEXT_INPUT]

    def output_types(self) -> list[dict[str, Any]]:
        """One string per item."""
        return [{"name": "text", "datatype": BYTES, "shape": [-1]}]
