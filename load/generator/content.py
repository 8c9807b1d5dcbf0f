"""Content of requests: from `--payload`, else by the model's V2 metadata, else text."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from load.errors import GeneratorError
from registry.domain.application import Penalty


@dataclass(frozen=True, slots=True)
class ExampleRules:
    """Where an application's examples are, and how its responses are judged."""

    path: str
    output: str = "label"
    penalty: Penalty = Penalty.SIGMOID
    deadline_s: float | None = None
    """Of requests without one in the trace; None: lateness costs nothing."""


_IMAGE_SUFFIXES: Final = {".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp"}


_ONE_NEEDED: Final = frozenset(("transformers", "diffusers"))
"""Platforms of models whose inputs after the first are options."""


class ContentKind(StrEnum):
    TEXT = "text"
    IMAGE = "image"
    TENSORS = "tensors"
    """Random numbers in the shapes of the metadata."""
    BODY = "body"
    """A whole request body from the user."""
    EXAMPLES = "examples"
    """Labelled examples of an application, one per request."""


@dataclass(frozen=True, slots=True)
class Content:
    """The content of requests for one model."""

    kind: ContentKind = ContentKind.TEXT
    tensor: str = "text"
    """Name of the V2 input."""
    data: str = ""
    """The body or image in base64; empty: images are generated."""
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    """For `TENSORS`: name, datatype and shape, -1 for a variable size."""
    examples: ExampleRules | None = None
    """For `EXAMPLES`."""


TEXT: Final = Content()
IMAGE: Final = Content(ContentKind.IMAGE, "image")


def read_payloads(options: Sequence[str]) -> dict[str, Content]:
    """Contents by model of `MODEL=FILE`, `MODEL=text` or `MODEL=image`. Raises GeneratorError."""
    found: dict[str, Content] = {}
    problems = []
    for option in options:
        model, equals, value = option.partition("=")
        if not (model and equals and value):
            problems.append(f"--payload must be MODEL=FILE, =text or =image, was {option!r}")
            continue
        try:
            found[model] = _read_payload(value)
        except (OSError, ValueError) as error:
            problems.append(f"--payload {option}: {error}")
    if problems:
        raise GeneratorError("\n".join(problems))
    return found


def _read_payload(value: str) -> Content:
    if value in ("text", "image"):
        return TEXT if value == "text" else IMAGE
    path = Path(value).expanduser()
    raw = path.read_bytes()
    data = base64.b64encode(raw).decode()
    if path.suffix.lower() in _IMAGE_SUFFIXES:
        return Content(ContentKind.IMAGE, "image", data)
    try:
        json.loads(raw)
    except ValueError as error:
        raise ValueError(f"must be an image or a JSON body: {error}") from error
    return Content(ContentKind.BODY, data=data)


def content_of_metadata(metadata: Any) -> Content | None:
    """Content that fits the inputs of V2 metadata; None for metadata without inputs."""
    try:
        inputs = [
            (str(each["name"]), str(each["datatype"]), tuple(map(int, each["shape"])))
            for each in metadata["inputs"]
        ]
    except (KeyError, TypeError, ValueError):
        return None
    if not inputs:
        return None
    first, datatype, _ = inputs[0]
    if datatype == "BYTES" and (len(inputs) == 1 or metadata.get("platform") in _ONE_NEEDED):
        is_image = "image" in first.lower()
        return Content(ContentKind.IMAGE if is_image else ContentKind.TEXT, first)
    return Content(ContentKind.TENSORS, inputs=tuple(inputs))
