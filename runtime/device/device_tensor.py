"""Tensors between numpy, in which requests have them, and torch, on the network's device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import BF16, BYTES, Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def from_device(name: str, datatype: str, values: torch.Tensor) -> Tensor:
    """The values on the host; waits for the work that makes them. On a CPU their own memory."""
    array = (values.float() if datatype == BF16 else values).cpu().numpy()
    return Tensor(name, datatype, np.ascontiguousarray(array).reshape(array.shape))


def values_on(device: torch.device, tensor: Tensor) -> torch.Tensor:
    """The tensor's values on the device, which a network may write to."""
    array = tensor.data if tensor.data.flags.writeable else tensor.data.copy()
    values = torch.from_numpy(array)
    values = values.to(torch.bfloat16) if tensor.datatype == BF16 else values
    # From pinned memory, so that nothing waits for the copy.
    pinned = values.pin_memory() if device.type == "cuda" else values
    return pinned.to(device, non_blocking=True)


def torch_inputs(
    inputs: Sequence[Tensor], network: PreTrainedModel, required: str = "input_ids"
) -> dict[str, torch.Tensor]:
    """The network's keyword arguments on its device; raises InvalidRequest."""
    arguments, device = {}, network.device  # found among its parameters each time
    for tensor in inputs:
        if tensor.datatype == BYTES:
            raise InvalidRequest(f"tensor {tensor.name!r} must be numeric, was BYTES")
        arguments[tensor.name] = values_on(device, tensor)
    if required not in arguments:
        raise InvalidRequest(f"inference needs a tensor {required!r}, got {sorted(arguments)}")
    return arguments
