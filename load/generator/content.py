"""What is sent to a model: known from `--payload`, else from the model's V2 metadata, else text."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from load.generator.errors import BadPayload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PICTURES: Final = {".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp"}


class ContentKind(StrEnum):
    """Kinds of content."""

    TEXT = "text"
    IMAGE = "image"
    TENSORS = "tensors"
    """Random numbers in the shapes that the metadata ask for."""
    BODY = "body"
    """A request body as the user gave it."""


@dataclass(frozen=True, slots=True)
class Content:
    """What one model is sent."""

    kind: ContentKind = ContentKind.TEXT
    tensor: str = "text"
    """Name of the V2 input that takes it."""
    data: str = ""
    """Base64: the body, or the picture; empty: pictures are made."""
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    """Of `TENSORS`: name, datatype and shape, -1 where the size is free."""

    def to_fields(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Content:
        """What `to_fields` gave, also after its way through JSON."""
        inputs = tuple((name, kind, tuple(shape)) for name, kind, shape in fields["inputs"])
        return cls(ContentKind(fields["kind"]), fields["tensor"], fields["data"], inputs)


TEXT: Final = Content()
IMAGE: Final = Content(ContentKind.IMAGE, "image")


def read_payloads(options: Sequence[str]) -> dict[str, Content]:
    """Contents by model of `MODEL=FILE`, `MODEL=text` or `MODEL=image`. Raises BadPayload."""
    found: dict[str, Content] = {}
    problems = []
    for option in options:
        model, equals, value = option.partition("=")
        if not (model and equals and value):
            problems.append(f"--payload must be MODEL=FILE, =text or =image, was {option!r}")
            continue
        try:
            found[model] = _content_of(value)
        except (OSError, ValueError) as error:
            problems.append(f"--payload {option}: {error}")
    if problems:
        raise BadPayload("\n".join(problems))
    return found


def _content_of(value: str) -> Content:
    if value in ("text", "image"):
        return TEXT if value == "text" else IMAGE
    path = Path(value).expanduser()
    raw = path.read_bytes()
    data = base64.b64encode(raw).decode()
    if path.suffix.lower() in _PICTURES:
        return Content(ContentKind.IMAGE, "image", data)
    try:
        json.loads(raw)
    except ValueError as error:
        raise ValueError(f"must be a picture or a JSON body: {error}") from error
    return Content(ContentKind.BODY, data=data)


def content_of_metadata(metadata: Any) -> Content | None:
    """What V2 metadata ask for; None where they name no inputs."""
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
    if len(inputs) == 1 and datatype == "BYTES":
        is_image = "image" in first.lower()
        return Content(ContentKind.IMAGE if is_image else ContentKind.TEXT, first)
    return Content(ContentKind.TENSORS, inputs=tuple(inputs))
