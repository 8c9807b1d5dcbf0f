"""Applications: a task with a deadline, and how the gateway chooses among its variants.

`registry.inference_service` parses YAML into them; here they become JSON documents of the registry.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

import orjson

from registry.domain.model import ModelName

KIND: Final = "InferenceApplication"
DEFAULT_WINDOW_S: Final = 0.1
DEFAULT_DEADLINE_S: Final = 1.0
DEFAULT_K: Final = 5
INPUT_DATATYPES: Final = ("FP32", "FP64", "INT32", "INT64", "UINT8")
"""Of the tensors whose rows are compared."""


class Penalty(StrEnum):
    """How utility falls once a deadline is missed; Wolfrath et al. 2025, section 6.1."""

    SIGMOID = "sigmoid"
    LINEAR = "linear"
    STEP = "step"
    NONE = "none"


class Prior(StrEnum):
    """What is known of the class frequencies before the data is seen; section 6.3.3."""

    UNINFORMATIVE = "uninformative"
    WEAK = "weak"
    STRONG = "strong"


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
    """A tensor of requests or of a variant; the first dimension of `shape` is the rows."""

    name: str
    datatype: str = "FP32"
    shape: tuple[int, ...] = (-1,)


@dataclass(frozen=True, slots=True)
class SneakPeekSpec:
    """The look at the data: where its examples are, and what it may be used for."""

    uri: str
    k: int | None = None
    """Neighbours; None: those that the files were trained with."""
    short_circuit: bool = True
    split_groups: bool = True


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
    prior: Prior = Prior.UNINFORMATIVE
    frequencies: tuple[float, ...] = ()
    """Of the classes, for a weak or strong prior."""
    sneak_peek: SneakPeekSpec | None = None
    owner: str = ""
    """Uid of the Kubernetes object that declares it; empty: declared otherwise."""
    normalises_accuracy: bool = False


@dataclass(frozen=True, slots=True)
class AccuracyProfile:
    """The confusion matrix of one generation of a variant, by its application's classes."""

    key: str
    classes: tuple[str, ...]
    confusion: tuple[tuple[int, ...], ...]
    """Rows are true classes."""
    inputs: tuple[InputTensor, ...] = ()
    """By the variant's V2 metadata; empty: not known."""
    outputs: tuple[str, ...] = ()
    """Names, likewise."""


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


def encode_application(spec: ApplicationSpec) -> str:
    document = asdict(spec) | {"name": spec.name._asdict()}
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS).decode()


def decode_application(text: str) -> ApplicationSpec:
    """Fields that a newer version wrote are ignored."""
    stored: dict[str, Any] = orjson.loads(text)
    known = {name: stored[name] for name in ApplicationSpec.__slots__ if name in stored}
    peek = known.get("sneak_peek")
    return ApplicationSpec(
        **known
        | {
            "name": ModelName(**stored["name"]),
            "classes": tuple(stored["classes"]),
            "inputs": read_tensors(stored["inputs"]),
            "penalty": Penalty(stored["penalty"]),
            "prior": Prior(stored["prior"]),
            "frequencies": tuple(stored["frequencies"]),
            "sneak_peek": SneakPeekSpec(**peek) if peek else None,
        }
    )


def encode_accuracy(profile: AccuracyProfile) -> str:
    return orjson.dumps(profile).decode()


def decode_accuracy(text: str) -> AccuracyProfile:
    stored = orjson.loads(text)
    confusion = tuple(tuple(row) for row in stored["confusion"])
    return AccuracyProfile(
        stored["key"],
        tuple(stored["classes"]),
        confusion,
        read_tensors(stored.get("inputs", ())),
        tuple(stored.get("outputs", ())),
    )


def read_tensors(documents: Sequence[Mapping[str, Any]]) -> tuple[InputTensor, ...]:
    """Tensors as V2 metadata and stored applications describe them."""
    return tuple(
        InputTensor(each["name"], each["datatype"], tuple(each["shape"])) for each in documents
    )
