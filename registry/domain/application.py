"""Applications: a task with a deadline, and how the gateway chooses among its variants.

`variants.application` parses YAML into them.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from registry.domain.model import ModelName

KIND: Final = "InferenceApplication"
DEFAULT_WINDOW_S: Final = 0.1
DEFAULT_DEADLINE_S: Final = 1.0
INPUT_DATATYPES: Final = ("FP32", "FP64", "INT32", "INT64", "UINT8")
"""Of the tensors whose rows are compared."""


class Penalty(StrEnum):
    """How utility falls once a deadline is missed; Wolfrath et al. 2025, section 6.1."""

    SIGMOID = "sigmoid"
    LINEAR = "linear"
    STEP = "step"
    NONE = "none"


class SelectionPolicy(StrEnum):
    """Selection policies of applications, as declared and as in `x-pilotlight-policy`."""

    LO_EDF = "lo-edf"
    LO_PRIORITY = "lo-priority"
    GROUPED = "grouped"
    SNEAKPEEK = "sneakpeek"
    EXACT = "exact"
    REFINED = "refined"


@dataclass(frozen=True, slots=True)
class InputTensor:
    """A tensor of requests; the first dimension of `shape` is the rows."""

    name: str
    datatype: str = "FP32"
    shape: tuple[int, ...] = (-1,)


@dataclass(frozen=True, slots=True)
class SneakPeekSpec:
    """The look at the data: where its examples are, and what it may be used for."""

    uri: str
    short_circuit: bool = True


@dataclass(frozen=True, slots=True)
class ApplicationSpec:
    """An InferenceApplication as declared. Times in seconds."""

    name: ModelName
    classes: tuple[str, ...]
    inputs: tuple[InputTensor, ...] = ()
    output: str = "label"
    deadline_s: float = DEFAULT_DEADLINE_S
    """From arrival at the gateway; it holds for all variants."""
    refuses_late: bool = False
    """Respond 504 at the deadline; otherwise lateness costs utility only."""
    penalty: Penalty = Penalty.SIGMOID
    policy: str = SelectionPolicy.REFINED
    window_s: float = DEFAULT_WINDOW_S
    is_window_fixed: bool = False
    """Windows never close before their time is over."""
    sneak_peek: SneakPeekSpec | None = None
    owner: str = ""
    """Uid of the Kubernetes object that declares it; empty: declared otherwise."""


@dataclass(frozen=True, slots=True)
class AccuracyProfile:
    """The confusion matrix of one generation of a variant, by its application's classes."""

    key: str
    classes: tuple[str, ...]
    confusion: tuple[tuple[int, ...], ...]
    """Rows are true classes."""


def parse_confusion(rows: object, classes: int) -> tuple[tuple[int, ...], ...]:
    """Raises ValueError, with what it must be, for what is no confusion matrix."""
    if (
        isinstance(rows, list | tuple)
        and len(rows) == classes
        and all(isinstance(row, list | tuple) and len(row) == classes for row in rows)
        and all(type(count) is int and count >= 0 for row in rows for count in row)
        and all(map(any, rows))
    ):
        return tuple(map(tuple, rows))
    raise ValueError(f"{classes} rows of {classes} counts, with an example in each")
