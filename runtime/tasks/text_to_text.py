"""Text to text, such as translation: greedy generation by an encoder and a decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.tasks.text import TextEncoder, TextInputs, TextOutputs, eos_ids, torch_inputs
from runtime.wire.tensors import Tensor, numeric_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import PretrainedConfig, PreTrainedModel


class TextToText(TextInputs, TextOutputs):
    def __init__(self, folder: Path, config: PretrainedConfig) -> None:
        super().__init__(TextEncoder(folder, config, takes_types=False))
        self.batching = self.encoder.batching(eos_ids=eos_ids(folder, config))

    def infer(self, network: PreTrainedModel, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Generate with the parameters of the model's generation_config.json."""
        output_ids = network.generate(**torch_inputs(inputs, network))
        return (numeric_tensor("output_ids", output_ids.cpu().numpy()),)

    def warm_up(self, network: PreTrainedModel) -> None:
        """Generate one token: a whole output would cost as much as a request."""
        inputs = torch_inputs(self.preprocess(["warm"]), network)
        network.generate(**inputs, min_new_tokens=1, max_new_tokens=1)
