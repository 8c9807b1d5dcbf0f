"""Classification of device errors: out of memory, or the device is lost for this process.

CUDA's own errors have codes. Its libraries raise plain RuntimeErrors with the name of a status.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator

import torch

OUT_OF_MEMORY = 2
TRANSIENT = frozenset(
    {
        OUT_OF_MEMORY,
        1,  # invalid value
        9,  # invalid configuration
        98,  # invalid device function
        209,  # no kernel image for device
        304,  # operating system call failed
        400,  # invalid resource handle
        701,  # launch out of resources
        712,  # host memory already registered
        713,  # host memory not registered
        801,  # not supported
        *range(900, 909),  # what a capture does not permit
    }
)
"""Codes of `cudaError` that fail one call. After any other error (an assertion in a kernel, an
illegal address, a fault of the hardware or of MPS) every later call fails, too."""


_LIBRARY_STATUS = re.compile(
    r"\b(?:CUBLAS|CUBLASLT|CUDNN|CUSOLVER|CUSPARSE|CUFFT)_(?:STATUS_)?(\w+)"
)
_NO_HANDLE = "NOT_INITIALIZED"
"""Of cuBLAS and cuDNN, whose handles are made by their first operation: memory was lacking."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error, or one of its causes, is that the device is out of memory."""
    return any(
        isinstance(cause, torch.OutOfMemoryError | MemoryError)
        or "can't allocate memory" in str(cause)
        or _code(cause) == OUT_OF_MEMORY
        or _is_full(_library_status(cause))
        for cause in _causes(error)
    )


def is_device_error(error: BaseException) -> bool:
    """Whether the device or one of its libraries failed, which says nothing about the model."""
    return any(
        isinstance(cause, torch.AcceleratorError | torch.OutOfMemoryError)
        or bool(_library_status(cause))
        for cause in _causes(error)
    )


def is_device_lost(error: BaseException) -> bool:
    """Whether this process cannot use its GPU any more; only a new process can.

    After an error of a library, `DeviceMemory.check` raises what this recognises.
    """
    return isinstance(error, torch.AcceleratorError) and _code(error) not in TRANSIENT


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _library_status(error: BaseException) -> str:
    """Such as ALLOC_FAILED; empty for errors that name none."""
    found = _LIBRARY_STATUS.search(str(error)) if isinstance(error, RuntimeError) else None
    return found.group(1) if found else ""


def _is_full(status: str) -> bool:
    return "ALLOC" in status or status == _NO_HANDLE


def release_frames(error: BaseException) -> None:
    """Drop the frames that the error and its causes passed through; a note keeps their lines.

    They keep the tensors of the failed work, and callers' frames, in which the error may be.
    """
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        traceback.clear_frames(each.__traceback__)
        each.add_note("".join(traceback.format_tb(each.__traceback__)))
        each.__traceback__ = None
        left += [each.__cause__, each.__context__]


def _code(error: BaseException) -> int | None:
    """The code of `cudaError`, if the error has one."""
    is_accelerator = isinstance(error, torch.AcceleratorError)
    return getattr(error, "error_code", None) if is_accelerator else None
