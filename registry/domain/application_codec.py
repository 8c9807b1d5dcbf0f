"""Applications and accuracy profiles as JSON documents of the registry."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson

from registry.domain.application import (
    AccuracyProfile,
    ApplicationSpec,
    InputTensor,
    Penalty,
    Prior,
    SelectionPolicy,
    SneakPeekSpec,
)
from registry.domain.model import ModelName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
            "policy": SelectionPolicy(stored["policy"]),
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
