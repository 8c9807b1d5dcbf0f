"""What an error says of the device: no room for now, or lost until the process is a new one."""

from __future__ import annotations

import torch

NO_MEMORY = 2
PASSING = frozenset({
    NO_MEMORY,
    1,    # invalid value
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
            "can't allocate memory" in str(cause) or _code(cause) == NO_MEMORY
        ):
            return True
        cause = cause.__cause__
    return False


def is_device_lost(error: BaseException) -> bool:
    """Whether the process can use its GPU no more: only a new process can."""
    return isinstance(error, torch.AcceleratorError) and _code(error) not in PASSING


def _code(error: BaseException) -> int | None:
    """The code of `cudaError`, where the error is of a device and tells it."""
    is_devices = isinstance(error, torch.AcceleratorError)
    return getattr(error, "error_code", None) if is_devices else None
