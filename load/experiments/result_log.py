"""What single runs of an experiment came to, kept as they end: a JSON document per line.

An experiment that ends before its time has no tables; what it had is here.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from load.experiments.errors import ExperimentError

if TYPE_CHECKING:
    from pathlib import Path


class ResultLog:
    """A file of results; as a context it is open, and empty at first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        """How many results it holds."""
        self._file = path.open("wb", buffering=0)

    def __enter__(self) -> ResultLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def keep(self, what: str, task: object, found: object) -> None:
        """Append one result in one write. Raises ExperimentError."""
        document = {"what": what, "task": plain(task), "result": plain(found)}
        try:
            self._file.write(json.dumps(document, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            raise ExperimentError(f"--out: cannot write {self.path}: {error}") from error
        self.count += 1


def plain(value: Any) -> Any:
    """A value as JSON has them: fields by name, arrays as lists, all else as text."""
    match value:
        case Enum():
            return value.value
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case np.ndarray() | np.generic():
            return plain(value.tolist())
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(each) for each in value]
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            return {each.name: plain(getattr(value, each.name)) for each in fields}
        case _:
            return str(getattr(value, "__qualname__", value))
