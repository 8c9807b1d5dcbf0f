"""Text embedding: the mean of the last layer over a text's tokens, normalised to length one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.tasks.text import TextEncoder, TextInputs, torch_inputs
from runtime.wire.tensors import Tensor, named_arrays, numeric_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import PretrainedConfig, PreTrainedModel

    from runtime.sandbox.pool import Sandbox


class Embedding(TextInputs):
    def __init__(
        self, folder: Path, config: PretrainedConfig, sandbox: Sandbox | None = None
    ) -> None:
        super().__init__(TextEncoder(folder, config, sandbox=sandbox))
        self.batching = self.encoder.batching()
        self._dimension: int = config.hidden_size

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Number of tokens in the texts, each truncated to the model's limit."""
        arrays = named_arrays(self.encoder.encode(texts))
        return int(arrays["attention_mask"].sum())

    def infer(self, network: PreTrainedModel, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Mean over the tokens that are not padding; pooled here, so that outputs are small."""
        arguments = torch_inputs(inputs, network)
        hidden = network(**arguments).last_hidden_state
        mask = arguments["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return (numeric_tensor("pooled", pooled.float().cpu().numpy()),)

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        pooled = outputs[0].data.astype(np.float32, copy=False)
        lengths = np.linalg.norm(pooled, axis=1, keepdims=True)
        return (numeric_tensor("embedding", pooled / np.maximum(lengths, np.float32(1e-12))),)

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        return list(outputs[0].data.tolist())

    def warm_up(self, network: PreTrainedModel) -> None:
        self.infer(network, self.preprocess(["warm"]))

    def output_types(self) -> list[dict[str, Any]]:
        return [{"name": "embedding", "datatype": "FP32", "shape": [-1, self._dimension]}]
