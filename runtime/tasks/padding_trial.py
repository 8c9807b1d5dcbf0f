"""Networks whose results for a text change with the padding beside it, found by a trial.

Convolutions over tokens see the padding in spite of the attention mask, and so do some position
numbers. Such a network gets each text by itself, without padding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from runtime.device.device_errors import is_device_error, is_out_of_memory
from runtime.device.device_tensor import torch_inputs
from runtime.device.queue import DeviceModel
from runtime.device.worker import DeviceWorker
from runtime.engines.networks.position_limit import is_never_padded, tolerance
from runtime.tasks.task import PaddedBatching, Processor
from runtime.tasks.text import TextEncoder, TextInputs
from runtime.tasks.text_generation import TextOutputs

if TYPE_CHECKING:
    from transformers import PreTrainedModel


SHORT_TEXT: Final = "a"
LONG_TEXT: Final = "a few words more than that"


class PaddingTrials:
    """Tries each class of networks once, with the weights of its first model."""

    def __init__(self) -> None:
        self._changed: dict[type, bool] = {}

    async def try_out(
        self, network: Any, processor: Processor, device: DeviceWorker, model: DeviceModel
    ) -> None:
        """Have texts computed one by one, if padding beside a text changes its results.

        Networks that generate text are tried by their engine.
        """
        if not isinstance(processor, TextInputs) or isinstance(processor, TextOutputs):
            return
        batching = processor.batching
        kind = type(network)
        if kind not in self._changed:
            trial = partial(is_changed_by_padding, network, processor.encoder, batching)
            self._changed[kind] = (await device.run(trial, model=model)).value
        if self._changed[kind]:
            model.max_rows = 1
            if not isinstance(network.forward, WithoutPadding):
                network.forward = WithoutPadding(network.forward)


def is_changed_by_padding(
    network: PreTrainedModel, encoder: TextEncoder, batching: PaddedBatching
) -> bool:
    """Whether a short text has other results beside a longer one; in the device's thread.

    A network that fails with both gets each text alone, too.
    """
    if is_never_padded(network.config):
        return True
    short, longer = encoder.encode([SHORT_TEXT]), encoder.encode([LONG_TEXT])
    alone = network(**torch_inputs(short, network))[0][0]
    try:
        together = network(**torch_inputs(batching.join([short, longer]), network))[0][0]
    except Exception as error:  # networks fail in different ways
        if is_device_error(error) or is_out_of_memory(error):
            raise
        return True
    if alone.shape != together.shape:  # a row for each token
        tokens = len(alone)
        together = together[-tokens:] if batching.pads_left else together[:tokens]
    distance = (alone - together).float().norm() / alone.float().norm().clamp(min=1e-30)
    return float(distance) > tolerance(network)


class WithoutPadding:
    """A network's `forward` that gives a single text to it without its padding."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self._forward = forward

    def __call__(self, attention_mask: torch.Tensor, **inputs: Any) -> Any:
        used = attention_mask[0].nonzero().flatten()
        width = attention_mask.shape[1]
        if len(attention_mask) != 1 or len(used) in (0, width):
            return self._forward(attention_mask=attention_mask, **inputs)
        begin, end = int(used[0]), int(used[-1]) + 1
        trimmed = {
            name: value[:, begin:end] if getattr(value, "shape", None) == (1, width) else value
            for name, value in inputs.items()
        }
        outputs = self._forward(attention_mask=attention_mask[:, begin:end], **trimmed)
        for name, value in outputs.items():
            if torch.is_tensor(value) and value.dim() == 3 and value.shape[1] == end - begin:
                outputs[name] = torch.nn.functional.pad(value, (0, 0, begin, width - end))
        return outputs
