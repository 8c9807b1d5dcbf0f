"""What runner and scheduler exchange: calls' arguments in heads of frames, and what a run prints.

A runner executes its users' code, and its messages are data to its scheduler. An argument of a
model's call is
{"value": JSON}, {"base64": text}, {"tensor": {"datatype", "shape", "data"}} or, from another
step, {"step": number, "output": name or null}.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

STREAM: Final = "stream"
"""Protocol of a step whose text is iterated as it is generated."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor with its type and whole shape, where a plain value would be read otherwise."""

    data: Sequence[Any]
    """Values, row after row."""
    datatype: str
    """Of the Open Inference Protocol, such as FP32."""
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raises ValueError where the shape does not fit the data."""
        expected = math.prod(self.shape)
        if expected != len(self.data):
            raise ValueError(
                f"a tensor of shape {list(self.shape)} has {expected} values, was given "
                f"{len(self.data)}"
            )

    def as_json(self) -> dict[str, Any]:
        return {"datatype": self.datatype, "shape": list(self.shape), "data": list(self.data)}


def source_of(argument: object) -> int | None:
    """The step whose output an argument is; None for a value."""
    match argument:
        case {"step": int(step)}:
            return step
    return None


MAX_PRINTED_BYTES: Final = 64 * 1024
_CUT: Final = "\n… (no more is kept)\n"


class Printed:
    """Text in the order in which it was printed."""

    __slots__ = ("_bytes", "is_full", "text")

    def __init__(self) -> None:
        self.text = ""
        self._bytes = 0
        self.is_full = False
        """Whether text was left out."""

    def add(self, text: str) -> str:
        """Keep what there is room for; returns that, with a mark where the rest is left out."""
        if self.is_full:
            return ""
        encoded = text.encode(errors="replace")
        left = MAX_PRINTED_BYTES - self._bytes
        self.is_full = len(encoded) > left
        kept = encoded[:left].decode(errors="ignore") + (_CUT if self.is_full else "")
        self._bytes += min(len(encoded), left)
        self.text += kept
        return kept
