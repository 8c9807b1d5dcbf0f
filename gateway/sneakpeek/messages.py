"""Messages between the gateway and the process that looks at data.

Times are of the system's monotonic clock, which both processes share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from registry.domain.application import InputTensor


@dataclass(frozen=True, slots=True)
class Load:
    """The application whose trained files are wanted; `uri` None: no longer."""

    application: str
    uri: str | None
    k: int | None = None
    classes: tuple[str, ...] = ()
    inputs: tuple[InputTensor, ...] = ()
    output: str = ""


@dataclass(frozen=True, slots=True)
class Loaded:
    application: str
    uri: str
    accuracy: float = 0.0
    """Profiled, of the look itself."""
    problem: str = ""
    """Why the files cannot be used; empty: they are in use."""


@dataclass(frozen=True, slots=True)
class Look:
    """A request, whose body is the frame's."""

    number: int
    until_s: float
    """Nobody waits for the evidence after it."""
    application: str
    json_bytes: int
    """Length of the JSON part of a V2 body with binary tensors; 0: all of it is JSON."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the look at a request found."""

    number: int
    rows: tuple[tuple[float, ...], ...] = ()
    """Evidence by row and class; empty: none."""
    is_v2: bool = False
    request_id: str | None = None
    """`id` of a V2 request."""
    is_answerable: bool = False
    """A short circuit may answer: the request asks for no binary tensors or other outputs."""
    problem: str = ""
    """Why no variant of the application can answer the request; empty: none is known."""


Message = Load | Loaded | Look | Seen


def as_head(message: Message) -> dict[str, Message]:
    """The head of the frame."""
    return {type(message).__name__: message}


def message_of(head: Mapping[str, Any]) -> Message:
    """The message whose frame has this head."""
    [(kind, stored)] = head.items()
    match kind:
        case "Load":
            inputs = tuple(
                InputTensor(each["name"], each["datatype"], tuple(each["shape"]))
                for each in stored["inputs"]
            )
            return Load(**stored | {"classes": tuple(stored["classes"]), "inputs": inputs})
        case "Seen":
            return Seen(**stored | {"rows": tuple(tuple(row) for row in stored["rows"])})
        case "Loaded":
            return Loaded(**stored)
    return Look(**stored)
