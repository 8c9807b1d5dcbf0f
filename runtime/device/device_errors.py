"""Classification of device errors: out of memory, or the device is lost for this process."""

from __future__ import annotations

import torch

OUT_OF_MEMORY = 2
TRANSIENT = frozenset({
    OUT_OF_MEMORY,
    1,    # invalid value
    9,    # invalid configuration
    98,   # invalid device function
    209,  # no kernel image for device
    701,  # launch out of resources
    801,  # not supported
})  # fmt: skip
"""Codes of `cudaError` that fail one call. After any other error (an assertion in a kernel, an
illegal address, a fault of the hardware or of MPS) every later call fails, too."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error, or one of its causes, is that the device is out of memory."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, torch.OutOfMemoryError | MemoryError) or (
            "can't allocate memory" in str(cause) or _code(cause) == OUT_OF_MEMORY
        ):
            return True
        cause = cause.__cause__
    return False


def is_device_lost(error: BaseException) -> bool:
    """Whether this process cannot use its GPU any more; only a new process can."""
    return isinstance(error, torch.AcceleratorError) and _code(error) not in TRANSIENT


def _code(error: BaseException) -> int | None:
    """The code of `cudaError`, if the error has one."""
    is_accelerator = isinstance(error, torch.AcceleratorError)
    return getattr(error, "error_code", None) if is_accelerator else None
