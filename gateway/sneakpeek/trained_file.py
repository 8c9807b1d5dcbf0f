"""The files of a trained look at the data: arrays as safetensors, the rest as JSON beside them.

The neighbours' index is built from the arrays when they are read: no library's index is ever read
from a file (faiss #5400), nothing is unpickled.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import numpy as np
import orjson
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from gateway.selection.sneakpeek_training import (
    MAX_DIMENSIONS,
    MAX_EXAMPLES,
    NearestExamples,
    TrainedSneakPeek,
)

ARRAYS: Final = "sneakpeek.safetensors"
FACTS: Final = "sneakpeek.json"
_VERSION: Final = 1
_NAMES: Final = ("vectors", "labels", "centre", "projection")
_MAX_BYTES: Final = 64 << 20
"""Of one file; the largest that `sneakpeek train` writes has some 3 MB."""


class InvalidSneakPeek(Exception):
    """The files cannot be used; the text says why."""


@dataclass(frozen=True, slots=True, eq=False)
class SneakPeekModel:
    examples: NearestExamples
    application: str
    classes: tuple[str, ...]
    inputs: tuple[str, ...]
    """Tensors that make up a row, side by side in this order."""
    confusion: tuple[tuple[int, ...], ...]
    """On the validation part; rows are true classes."""


def write_sneakpeek(
    folder: Path, trained: TrainedSneakPeek, *, application: str, classes: tuple[str, ...],
    inputs: tuple[str, ...],
) -> None:  # fmt: skip
    """Write both files; the JSON last, which makes the folder complete."""
    folder.mkdir(parents=True, exist_ok=True)
    examples = trained.examples
    arrays: dict[str, np.ndarray] = {
        "vectors": examples.vectors,
        "labels": examples.labels,
        "centre": np.ascontiguousarray(examples.centre),
        "projection": np.ascontiguousarray(examples.projection),
    }
    save_file(arrays, folder / ARRAYS)
    facts = {
        "pilotlight_sneakpeek": _VERSION,
        "application": application,
        "classes": classes,
        "inputs": inputs,
        "k": examples.k,
        "confusion": trained.confusion.tolist(),
        "fold_accuracy": {str(k): share for k, share in trained.fold_accuracy.items()},
    }
    (folder / FACTS).write_bytes(orjson.dumps(facts, option=orjson.OPT_INDENT_2))


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


def _model(facts: dict[str, Any], arrays: dict[str, Any]) -> SneakPeekModel:
    if facts["pilotlight_sneakpeek"] != _VERSION:
        raise ValueError(f"version must be {_VERSION}, was {facts['pilotlight_sneakpeek']!r}")
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
    confusion = tuple(tuple(int(each) for each in row) for row in facts["confusion"])
    if [len(row) for row in confusion] != [len(classes)] * len(classes):
        raise ValueError(f"confusion must be {len(classes)} rows of {len(classes)}")
    examples = NearestExamples.of(
        vectors, labels.astype(np.int64), classes=len(classes), k=k, centre=centre,
        projection=projection,
    )  # fmt: skip
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
            _from_library(uri, folder)
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


def _from_library(uri: str, folder: Path) -> None:
    from kserve_storage import Storage

    Storage.download(uri, str(folder))
