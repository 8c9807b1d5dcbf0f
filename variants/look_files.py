"""The look at the data, exact nearest neighbours: its files, safetensors and JSON.

The neighbours' index is built from the arrays when they are read: no library's index is ever read
from a file (faiss #5400), nothing is unpickled.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import numpy as np
import orjson
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from registry.domain.application import ApplicationSpec, parse_confusion

Vectors = NDArray[np.float32]
Labels = NDArray[np.int64]


MAX_EXAMPLES: Final = 10_000
MAX_DIMENSIONS: Final = 64
ARRAYS: Final = "sneakpeek.safetensors"
FACTS: Final = "sneakpeek.json"
VERSION: Final = 1
_NAMES: Final = ("vectors", "labels", "centre", "projection")
_MAX_BYTES: Final = 64 << 20
"""Of one file; the largest that `sneakpeek train` writes has some 3 MB."""


class InvalidSneakPeek(Exception):
    """The files cannot be used; the text says why."""


@dataclass(frozen=True, slots=True, eq=False)
class NearestExamples:
    """Labelled vectors, [examples, dimensions], and how rows of a request become such vectors."""

    vectors: Vectors
    labels: Labels
    """[examples], from 0 to `classes` - 1."""
    classes: int
    k: int
    centre: Vectors
    """[features], subtracted from a row."""
    projection: Vectors
    """[features, dimensions], applied then."""
    half_norms: Vectors = field(init=False)
    """[examples]: half the squared length of each vector."""

    def __post_init__(self) -> None:
        vectors = np.ascontiguousarray(self.vectors, np.float32)
        half_norms = (np.einsum("ij,ij->i", vectors, vectors) / 2).astype(np.float32)
        object.__setattr__(self, "vectors", vectors)
        object.__setattr__(self, "half_norms", half_norms)

    def evidence(self, rows: Vectors) -> NDArray[np.float64]:
        """The labels of the k nearest examples of each row, counted: [rows, classes]."""
        projected = (rows - self.centre).astype(np.float32) @ self.projection
        # Half the squared distance, less the row's own half square, which is the same for all.
        distances = self.half_norms - projected @ self.vectors.T
        k = min(self.k, len(self.vectors))
        nearest = np.argpartition(distances, k - 1, axis=1)[:, :k]
        counts = np.zeros((len(projected), self.classes))
        np.add.at(counts, (np.arange(len(projected))[:, None], self.labels[nearest]), 1.0)
        return counts


@dataclass(frozen=True, slots=True, eq=False)
class SneakPeekModel:
    examples: NearestExamples
    application: str
    classes: tuple[str, ...]
    inputs: tuple[str, ...]
    """Tensors that make up a row, side by side in this order."""
    confusion: tuple[tuple[int, ...], ...]
    """On the validation part; rows are true classes."""


def read_sneakpeek(folder: Path) -> SneakPeekModel:
    """Raises InvalidSneakPeek for missing, truncated or foreign files."""
    try:
        facts = orjson.loads((folder / FACTS).read_bytes())
        arrays = load_file(folder / ARRAYS)
        return _model(facts, arrays)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise InvalidSneakPeek(
            f"{folder}: not what `pilotlight sneakpeek train` writes: {error}"
        ) from error


def read_for(spec: ApplicationSpec, folder: Path) -> SneakPeekModel:
    """As `read_sneakpeek`, of a look that fits the application's declaration."""
    wanted, model = spec.sneak_peek, read_sneakpeek(folder)
    assert wanted is not None
    named = {each.name for each in spec.inputs}
    problem = ""
    if model.classes != spec.classes:
        problem = (
            f"was trained for the classes {', '.join(model.classes)}; the application has "
            f"{', '.join(spec.classes)}"
        )
    elif named and not set(model.inputs) <= named:
        problem = (
            f"was trained on the inputs {', '.join(model.inputs)}; the application has "
            f"{', '.join(sorted(named))}"
        )
    if problem:
        raise InvalidSneakPeek(f"{wanted.uri}: {problem}")
    return model


def _model(facts: dict[str, Any], arrays: dict[str, Any]) -> SneakPeekModel:
    if facts["pilotlight_sneakpeek"] != VERSION:
        raise ValueError(f"version must be {VERSION}, was {facts['pilotlight_sneakpeek']!r}")
    vectors, labels, centre, projection = (arrays[name] for name in _NAMES)
    classes, k = tuple(facts["classes"]), facts["k"]
    is_bounded = vectors.ndim == 2 and 0 < len(vectors) <= MAX_EXAMPLES
    if not is_bounded or vectors.shape[1] > MAX_DIMENSIONS:
        allowed = f"[1 to {MAX_EXAMPLES}, 1 to {MAX_DIMENSIONS}]"
        raise ValueError(f"vectors must be {allowed}, was {list(vectors.shape)}")
    if labels.shape != vectors.shape[:1] or not ((labels >= 0) & (labels < len(classes))).all():
        raise ValueError(f"labels must be {len(vectors)} numbers from 0 to {len(classes) - 1}")
    if centre.ndim != 1 or not len(centre):
        raise ValueError(f"centre must be [features], was {list(centre.shape)}")
    if projection.shape != (*centre.shape, vectors.shape[1]):
        raise ValueError(f"projection must be {[*centre.shape, vectors.shape[1]]}")
    if not all(np.isfinite(arrays[name]).all() for name in _NAMES):
        raise ValueError("arrays must be finite")
    if type(k) is not int or not 1 <= k <= len(vectors):
        raise ValueError(f"k must be 1 to {len(vectors)}, was {k!r}")
    try:
        confusion = parse_confusion(facts["confusion"], len(classes))
    except ValueError as error:
        raise ValueError(f"confusion must be {error}") from error
    labels = labels.astype(np.int64)
    examples = NearestExamples(vectors, labels, len(classes), k, centre, projection)
    return SneakPeekModel(
        examples, str(facts["application"]), classes, tuple(facts["inputs"]), confusion
    )


def fetch(uri: str, folder: Path) -> Path:
    """The folder that holds the files of a `sneakPeek.uri`: its own, or `folder` with copies.

    Raises InvalidSneakPeek.
    """
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return _checked(Path(unquote(parts.path)), uri)
    try:
        if parts.scheme == "s3":
            _from_s3(parts.netloc, unquote(parts.path).strip("/"), folder)
        else:
            from kserve_storage import Storage

            Storage.download(uri, str(folder))
    except ModuleNotFoundError as error:
        extra = "variants" if parts.scheme == "s3" else "storage"
        raise InvalidSneakPeek(
            f"{uri}: reading it needs {error.name}: pip install 'pilotlight[{extra}]'"
        ) from error
    except Exception as error:  # whatever the libraries raise
        raise InvalidSneakPeek(f"{uri}: cannot be read: {error}") from error
    return _checked(folder, uri)


def _checked(folder: Path, uri: str) -> Path:
    for name in (ARRAYS, FACTS):
        try:
            size = (folder / name).stat().st_size
        except OSError as error:
            raise InvalidSneakPeek(f"{uri}: {name} cannot be read: {error.strerror}") from error
        if size > _MAX_BYTES:
            raise InvalidSneakPeek(f"{uri}: {name} may have {_MAX_BYTES} bytes, has {size}")
    return folder


def _from_s3(bucket: str, prefix: str, folder: Path) -> None:
    import boto3

    client: Any = boto3.client("s3", endpoint_url=os.environ.get("AWS_ENDPOINT_URL") or None)
    for name in (ARRAYS, FACTS):
        key = f"{prefix}/{name}" if prefix else name
        size = client.head_object(Bucket=bucket, Key=key)["ContentLength"]
        if size > _MAX_BYTES:
            raise InvalidSneakPeek(f"{name} may have {_MAX_BYTES} bytes, has {size}")
        client.download_file(bucket, key, str(folder / name))


def confusion_matrix(labels: Labels, predicted: Labels, classes: int) -> NDArray[np.int64]:
    """Counts by true class (row) and predicted class (column)."""
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (labels, predicted), 1)
    return counts


def stratified_subset(labels: Labels, max_examples: int) -> NDArray[np.int64]:
    """Indexes of at most `max_examples` examples, evenly spaced within each class."""
    if len(labels) <= max_examples:
        return np.arange(len(labels))
    chosen = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = max(1, len(members) * max_examples // len(labels))
        chosen.append(members[np.linspace(0, len(members) - 1, count).astype(np.int64)])
    return np.sort(np.concatenate(chosen))[:max_examples]
