"""Types of numbers on a device: what a model's declared type becomes there, and TF32."""

from __future__ import annotations

import logging
from typing import Final

import torch

from registry.domain.model import Precision

logger = logging.getLogger(__name__)

_DTYPES: Final = {Precision.FLOAT32: torch.float32, Precision.BFLOAT16: torch.bfloat16}


def dtype_on(
    device: torch.device, wanted: Precision | None, *, has_bfloat16: bool
) -> torch.dtype | None:
    """The type of the weights; None: as stored, also on a GPU that lacks bfloat16.

    What `auto` means is chosen by the model (`runtime.loading.type_choice`).
    """
    if wanted is Precision.BFLOAT16 and device.type == "cuda" and not has_bfloat16:
        logger.warning("the GPU has no bfloat16; weights stay as they are stored")
        return None
    return None if wanted is None or wanted is Precision.AUTO else _DTYPES[wanted]


def use_tf32() -> None:
    """Let a GPU multiply 32-bit numbers with 10 bits of mantissa, several times as fast.

    cuDNN's convolutions do so by default. Not for pods on a CPU, where it would apply, too.
    """
    torch.set_float32_matmul_precision("high")
