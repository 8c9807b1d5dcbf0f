"""Labelled examples of an application, from safetensors or `.npz`; nothing is ever unpickled."""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

LABELS: Final = "labels"
PROJECTION: Final = "projection"
"""Optional, [features, dimensions]: what nearest neighbours are shown of the inputs."""
_NOT_INPUTS: Final = (LABELS, PROJECTION)
_MAX_ROWS_NAMED: Final = 5
_UNREADABLE: Final = (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError)
"""What numpy raises for files of another format."""


class InvalidExamples(Exception):
    """A file of labelled examples cannot be used; `problems` has a line per mistake."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


@dataclass(frozen=True, slots=True, eq=False)
class LabelledExamples:
    inputs: Mapping[str, NDArray[np.float32]]
    """[rows, ...] by name of tensor."""
    labels: NDArray[np.int64]
    projection: NDArray[np.float32] | None

    def take(self, rows: NDArray[np.int64]) -> "LabelledExamples":
        inputs = {name: values[rows] for name, values in self.inputs.items()}
        return LabelledExamples(inputs, self.labels[rows], self.projection)

    def features(self) -> NDArray[np.float32]:
        """All inputs side by side, in the order of their names: [rows, features]."""
        rows = len(self.labels)
        return np.concatenate(
            [self.inputs[name].reshape(rows, -1) for name in sorted(self.inputs)], 1
        )


def read_examples(
    path: Path, *, classes: int, inputs: Sequence[str], needs_every_class: bool = True
) -> LabelledExamples:
    """Raises InvalidExamples with all mistakes; rows are named.

    `inputs`: names of the tensors to read; empty: all that are not predictions, which have spaces.
    """
    arrays = _arrays(path)
    names = list(inputs) or [
        name for name in sorted(arrays) if name not in _NOT_INPUTS and " " not in name
    ]
    present = ", ".join(sorted(arrays)) or "none"
    problems = [
        f"{path}: the tensor {name!r} is missing; the file has {present}"
        for name in [*names, LABELS]
        if name not in arrays
    ]
    if not names:
        problems.append(f"{path}: holds no input tensor beside {LABELS!r}")
    if problems:
        raise InvalidExamples(problems)
    labels = arrays[LABELS]
    problems += _label_problems(path, labels, classes, needs_every_class=needs_every_class)
    for name in names:
        problems += _input_problems(path, name, arrays[name], len(labels))
    if problems:
        raise InvalidExamples(problems)
    found = {name: arrays[name].astype(np.float32) for name in names}
    projection = arrays[PROJECTION].astype(np.float32) if PROJECTION in arrays else None
    return LabelledExamples(found, labels.astype(np.int64), projection)


def read_predictions(
    path: Path, names: Sequence[str], *, classes: int
) -> dict[str, NDArray[np.int64]]:
    """What variants predict for the examples, of those that the file has: `predicted NAME`.

    Raises InvalidExamples.
    """
    arrays = _arrays(path)
    found = {name: arrays[f"predicted {name}"] for name in names if f"predicted {name}" in arrays}
    rows = len(arrays[LABELS]) if LABELS in arrays else 0
    problems = [
        f"{path}: predicted {name} must be {rows} classes from 0 to {classes - 1}"
        for name, values in found.items()
        if values.shape != (rows,)
        or values.dtype.kind not in "iu"
        or not np.isin(values, np.arange(classes)).all()
    ]
    if problems:
        raise InvalidExamples(problems)
    return {name: values.astype(np.int64) for name, values in found.items()}


def _arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    try:
        if path.suffix == ".npz":
            # numpy leaves a file that it opened itself open where it is damaged.
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        return dict(load_file(path))
    except (*_UNREADABLE, zipfile.BadZipFile, SafetensorError) as error:
        raise InvalidExamples(
            [f"{path}: cannot be read as {path.suffix or 'safetensors'} without pickle: {error}"]
        ) from error


def _label_problems(
    path: Path, labels: NDArray[np.generic], classes: int, *, needs_every_class: bool
) -> list[str]:
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
        shown = f"{labels.dtype} {list(labels.shape)}"
        return [f"{path}: {LABELS} must be whole numbers [rows], was {shown}"]
    problems = []
    numbers = labels.astype(np.int64)
    wrong = np.flatnonzero((numbers < 0) | (numbers >= classes))
    if len(wrong):
        allowed = f"must be 0 to {classes - 1}, the application's classes"
        problems.append(f"{path}: {LABELS} {allowed}, was {numbers[wrong[0]]} {_rows(wrong)}")
    missing = sorted(set(range(classes)) - set(numbers.tolist()))
    if missing and needs_every_class:
        problems.append(f"{path}: classes without an example: {', '.join(map(str, missing))}")
    return problems


def _input_problems(path: Path, name: str, values: NDArray[np.generic], rows: int) -> list[str]:
    if values.dtype.kind not in "fiu" or values.ndim < 1 or len(values) != rows:
        shown = f"{values.dtype} {list(values.shape)}"
        return [f"{path}: {name} must be numbers [{rows}, ...], a row per label, was {shown}"]
    flat = values.reshape(rows, -1).astype(np.float64)
    wrong = np.flatnonzero(~np.isfinite(flat).all(axis=1))
    return [f"{path}: {name} must be finite {_rows(wrong)}"] if len(wrong) else []


def _rows(rows: NDArray[np.int64]) -> str:
    named = ", ".join(str(row) for row in rows[:_MAX_ROWS_NAMED])
    more = f" and {len(rows) - _MAX_ROWS_NAMED} more" if len(rows) > _MAX_ROWS_NAMED else ""
    return f"in row{'s' if len(rows) > 1 else ''} {named}{more}"
