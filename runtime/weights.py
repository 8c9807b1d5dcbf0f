"""Safetensors files as tensors: checked first, then mapped into memory and not copied."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from runtime.errors import ModelInvalid

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

HEADER_LENGTH_BYTES = 8
MOST_HEADER_BYTES = 100 * 1024**2


def map_weights(paths: Sequence[Path]) -> dict[str, torch.Tensor]:
    """All tensors of the files, mapped; raises ModelInvalid where a file is not whole."""
    weights: dict[str, torch.Tensor] = {}
    for path in paths:
        check_layout(path)
        try:
            with safe_open(path, framework="pt") as reader:
                weights.update({name: reader.get_tensor(name) for name in reader.keys()})  # noqa: SIM118  # not a dict
        except (SafetensorError, OSError) as error:
            raise ModelInvalid(f"{path.name} is not a valid safetensors file: {error}") from error
    return weights


def check_layout(path: Path) -> None:
    """Compare the size a file's header promises with the file: reading past its end is fatal.

    A mapped file that is shorter than its header says kills the process with SIGBUS when the
    missing pages are touched, so this comes before mapping.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as source:
            prefix = source.read(HEADER_LENGTH_BYTES)
            if len(prefix) < HEADER_LENGTH_BYTES:
                raise ModelInvalid(f"{path.name} is truncated: it has only {size} bytes")
            (length,) = struct.unpack("<Q", prefix)
            if length > min(MOST_HEADER_BYTES, size - HEADER_LENGTH_BYTES):
                raise ModelInvalid(
                    f"{path.name} is corrupt or truncated: its header says {length} bytes,"
                    f" the file has {size}"
                )
            header = json.loads(source.read(length))
        ends = [
            entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"
        ]
        promised = HEADER_LENGTH_BYTES + length + max(ends, default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise ModelInvalid(f"{path.name} is corrupt: its header cannot be read") from error
    except OSError as error:
        raise ModelInvalid(f"{path.name} cannot be read: {error}") from error
    if promised != size:
        raise ModelInvalid(
            f"{path.name} is corrupt or truncated: its header promises {promised} bytes,"
            f" the file has {size}"
        )
