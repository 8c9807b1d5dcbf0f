"""Results of single runs, logged as soon as they end: a JSON document per line.

An interrupted experiment writes no tables; this log holds its results so far.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from research.experiments.harness.experiment import ExperimentError


class ResultLog:
    """A file of results, truncated when the log is created."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        """Number of results in the file."""
        self._file = path.open("wb", buffering=0)

    def __enter__(self) -> ResultLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def keep(self, what: str, task: object, result: object) -> None:
        """Append one result in one write. Raises ExperimentError."""
        document = {"what": what, "task": _plain(task), "result": _plain(result)}
        try:
            self._file.write(json.dumps(document, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            raise ExperimentError(f"--out: cannot write {self.path}: {error}") from error
        self.count += 1


def _plain(value: Any) -> Any:
    """Convert to JSON types: dataclasses to objects, arrays to lists, unknown types to text."""
    match value:
        case Enum():
            return value.value
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case np.ndarray() | np.generic():
            return _plain(value.tolist())
        case Mapping():
            return {str(key): _plain(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(each) for each in value]
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            return {each.name: _plain(getattr(value, each.name)) for each in fields}
        case _:
            return str(getattr(value, "__qualname__", value))
