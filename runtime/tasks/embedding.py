"""Text embedding: the mean of the last layer over a text's tokens, normalised to length one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runtime.device.device_tensor import DeviceTensor
from runtime.tasks.text import TextEncoder, TextInputs, torch_inputs
from runtime.wire.tensors import named_arrays

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import PretrainedConfig, PreTrainedModel

    from runtime.sandbox.pool import Sandbox
    from runtime.wire.tensors import Tensor


class Embedding(TextInputs):
    def __init__(
        self, folder: Path, config: PretrainedConfig, sandbox: Sandbox | None = None
    ) -> None:
        super().__init__(TextEncoder(folder, config, sandbox=sandbox))
        self.batching = self.encoder.batching()
        self._dimension: int = config.hidden_size
        self.vocabulary: int = config.vocab_size

    def count_tokens(self, items: Sequence[str | list[int]]) -> int:
        """Number of tokens in the texts, each truncated to the model's limit."""
        return int(named_arrays(self.preprocess(items))["attention_mask"].sum())

    def read_tensors(self, tensors: Sequence[Tensor]) -> Sequence[Any]:
        """Texts, or the tokens of `input_ids` and `attention_mask`; raises InvalidRequest."""
        if all(tensor.name != "input_ids" for tensor in tensors):
            return super().read_tensors(tensors)
        arrays = named_arrays(self.batching.validate(tensors))
        masks = arrays["attention_mask"].astype(bool)
        return [row[mask].tolist() for row, mask in zip(arrays["input_ids"], masks, strict=True)]

    def preprocess(self, items: Sequence[Any]) -> tuple[Tensor, ...]:
        texts = [each for each in items if isinstance(each, str)]
        rows = [each for each in items if not isinstance(each, str)]
        return self.encoder.pad(rows) if rows else self.encoder.encode(texts)

    def infer(self, network: PreTrainedModel, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Mean over the tokens that are not padding, of length one; the output stays small so."""
        arguments = torch_inputs(inputs, network)
        hidden = network(**arguments).last_hidden_state
        mask = arguments["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        pooled = ((hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)).float()
        lengths = pooled.norm(dim=1, keepdim=True).clamp(min=1e-12)
        return (DeviceTensor("embedding", "FP32", pooled / lengths),)

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(outputs)

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        return list(outputs[0].data.tolist())

    def warm_up(self, network: PreTrainedModel) -> None:
        self.infer(network, self.preprocess(["warm"]))

    def output_types(self) -> list[dict[str, Any]]:
        return [{"name": "embedding", "datatype": "FP32", "shape": [-1, self._dimension]}]
