"""What an error says of the device: no room for now, or lost until the process is a new one."""

from __future__ import annotations

import torch

PASSING = frozenset({
    1,    # invalid value
    2,    # memory allocation
    9,    # invalid configuration
    98,   # invalid device function
    209,  # no kernel image for device
    701,  # launch out of resources
    801,  # not supported
})  # fmt: skip
"""Codes of `cudaError` that end one call. After any other one (an assertion in a kernel, an illegal
address, a fault of the hardware or of MPS) every later call fails, too."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error, or what it came from, was that the device had no room."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, torch.OutOfMemoryError | MemoryError) or (
            "can't allocate memory" in str(cause)
        ):
            return True
        cause = cause.__cause__
    return False


def is_device_lost(error: BaseException) -> bool:
    """Whether the process can use its GPU no more: only a new process can."""
    return isinstance(error, torch.AcceleratorError) and (
        getattr(error, "error_code", None) not in PASSING
    )
