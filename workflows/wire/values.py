"""Arguments of a model's call as they are written in a frame, and their references to other steps.

{"value": JSON}, {"base64": text}, {"tensor": {"datatype", "shape", "data"}} or
{"step": number, "output": name or null}.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

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
