"""What an inference gets for one request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.wire.tensors import Tensor


class OutputPlace(Enum):
    """Where an inference leaves the outputs of a request."""

    HOST = auto()
    DEVICE = auto()
    """In the memory of the batch, for more work of the device's thread."""
    KEPT = auto()
    """Large ones on the device in memory of their own, as far as there is room."""


@dataclass(frozen=True, slots=True)
class ModelInputs:
    tensors: tuple[Tensor, ...]
    """Checked, in the network's order."""
    outputs: OutputPlace = OutputPlace.HOST
