"""Text embedding: the mean of the last layer over a text's tokens, of length one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.tasks.text import (
    TEXT_INPUT,
    TextEncoder,
    texts_of_instances,
    texts_of_tensors,
    torch_inputs,
)
from runtime.wire.tensors import Tensor, named_arrays, numeric_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import PretrainedConfig, PreTrainedModel


class Embedding:
    """Texts to vectors."""

    def __init__(self, folder: Path, config: PretrainedConfig) -> None:
        self._encoder = TextEncoder(folder, config)
        self.batching = self._encoder.batching()
        self._dimension: int = config.hidden_size

    def read_instances(self, instances: Sequence[Any]) -> list[str]:
        """Texts of a V1 body."""
        return texts_of_instances(instances)

    def read_tensors(self, tensors: Sequence[Tensor]) -> list[str]:
        """Texts of a V2 body."""
        return texts_of_tensors(tensors)

    def preprocess(self, items: Sequence[str]) -> tuple[Tensor, ...]:
        """Tokens."""
        return self._encoder.encode(items)

    def count_tokens(self, texts: Sequence[str]) -> int:
        """How many tokens the texts have, as far as the model reads them."""
        arrays = named_arrays(self._encoder.encode(texts))
        return int(arrays["attention_mask"].sum())

    def infer(self, network: PreTrainedModel, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Mean over the tokens that are not padding, pooled here to keep what travels small."""
        arguments = torch_inputs(inputs, network)
        hidden = network(**arguments).last_hidden_state
        mask = arguments["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return (numeric_tensor("pooled", pooled.float().cpu().numpy()),)

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Vectors of length one."""
        pooled = outputs[0].data.astype(np.float32, copy=False)
        lengths = np.linalg.norm(pooled, axis=1, keepdims=True)
        return (numeric_tensor("embedding", pooled / np.maximum(lengths, np.float32(1e-12))),)

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        """One list of numbers per text."""
        return list(outputs[0].data.tolist())

    def warm_up(self, network: PreTrainedModel) -> None:
        """A short text."""
        self.infer(network, self.preprocess(["warm"]))

    def input_types(self) -> list[dict[str, Any]]:
        """One string per item."""
        return [TEXT_INPUT]

    def output_types(self) -> list[dict[str, Any]]:
        """One vector per item."""
        return [{"name": "embedding", "datatype": "FP32", "shape": [-1, self._dimension]}]
