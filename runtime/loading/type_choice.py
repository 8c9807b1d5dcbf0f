"""The type of weights that `auto` chose for a model: bfloat16 where its outputs stay near.

Compared once, at the first load on a device that has bfloat16, on one sample input. The choice is
kept beside the generation's files: for later loads, and for other pods that share the disk cache.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from runtime.device.device_errors import is_device_error, is_out_of_memory

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

    from runtime.tasks.task import Processor

logger = logging.getLogger(__name__)

TOLERANCE: Final = 0.02
"""Of the sample's outputs: the largest difference, in parts of the largest output in 32 bits.
Numbers of bfloat16 are rounded by up to 0.004 of themselves."""
CHOICE: Final = ".dtype.json"
SAMPLE_ROWS: Final = 2
SAMPLE_TOKENS: Final = 16


def is_bfloat16_chosen(folder: Path) -> bool | None:
    """The choice of the generation in this folder; None: it has not been compared yet."""
    try:
        return bool(json.loads((folder / CHOICE).read_text())["bfloat16"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def record_choice(folder: Path, *, difference: float) -> bool:
    """Whether outputs that differ so much are near enough; kept in the folder, if it can be."""
    is_near = difference <= TOLERANCE  # not for NaN
    fields = {"bfloat16": is_near, "difference": repr(difference), "tolerance": TOLERANCE}
    aside = folder / f"{CHOICE}.{os.getpid()}-{threading.get_ident()}.aside"
    try:
        aside.write_text(json.dumps(fields))
        os.replace(aside, folder / CHOICE)
    except OSError as error:
        logger.warning("choice of dtype not kept", extra={"folder": folder, "error": error})
    return is_near


def sample_outputs(network: PreTrainedModel, processor: Processor) -> torch.Tensor | None:
    """What the network computes of a made-up input, in 32 bits; called in the device's thread.

    None for a network that refuses the input; raises the device's errors.
    """
    try:
        return _outputs(network, processor)
    except Exception as error:  # a network may raise any error
        if is_out_of_memory(error) or is_device_error(error):
            raise
        logger.info("sample input refused", extra={"error": error})
        return None


def _outputs(network: PreTrainedModel, processor: Processor) -> torch.Tensor:
    arguments: dict[str, Any] = {}
    numbers = np.random.default_rng(0)
    for tensor in processor.batching.example(SAMPLE_ROWS, SAMPLE_TOKENS):
        if tensor.data.dtype.kind == "f":  # an image: blank ones show no difference
            drawn = numbers.standard_normal(tensor.shape, np.float32)
            arguments[tensor.name] = torch.from_numpy(drawn).to(network.device, network.dtype)
        else:
            arguments[tensor.name] = torch.from_numpy(np.array(tensor.data)).to(network.device)
    if network.config.is_encoder_decoder:
        arguments["decoder_input_ids"] = arguments["input_ids"]
    return network(**arguments)[0].float().cpu()  # type: ignore[no-any-return]  # untyped


def difference(exact: torch.Tensor | None, near: torch.Tensor | None) -> float:
    """The largest difference, in parts of the largest of the exact numbers."""
    if exact is None or near is None:
        return math.inf
    largest = exact.abs().max()
    return float((exact - near).abs().max() / largest.clamp(min=torch.finfo(exact.dtype).tiny))
