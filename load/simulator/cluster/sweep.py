"""Variants of a cluster file: several values of one of its keys."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from load.errors import InvalidCluster
from load.simulator.cluster.cluster_file import read_document
from registry.errors import InvalidYaml
from registry.inference_service.documents import read_yaml

_MAX_NAME_LENGTH: Final = 120


@dataclass(frozen=True, slots=True)
class Sweep:
    """A key of a cluster file, such as `nodes.0.pods.0.slots`, and the values to try."""

    key: str
    values: tuple[Any, ...]


def parse_sweep(text: str) -> Sweep:
    """Read `KEY=A,B,C`; values are read as YAML. Raises InvalidCluster."""
    key, found, values = text.partition("=")
    if not key or not found or not values:
        raise InvalidCluster(
            [f"--sweep must be KEY=A,B,C such as nodes.0.count=4,8,16, was {text!r}"]
        )
    try:
        return Sweep(key, tuple(_value(each) for each in values.split(",")))
    except InvalidYaml as error:
        raise InvalidCluster([f"--sweep {key}: {error}"]) from error


def _value(text: str) -> Any:
    found = read_yaml(text)
    return found[0] if found else None


def variants(path: Path, sweep: Sweep | None) -> list[tuple[Any, Any]]:
    """Pairs of a value and the cluster document with that value. Raises InvalidCluster."""
    document = read_document(path)
    if sweep is None:
        return [(None, document)]
    found = []
    for value in sweep.values:
        changed = copy.deepcopy(document)
        _set(changed, sweep.key, value)
        found.append((value, changed))
    return found


def _set(document: Any, key: str, value: Any) -> None:
    *parents, last = key.split(".")
    try:
        for part in parents:
            if isinstance(document, dict):
                document = document.setdefault(part, {})
            else:
                document = document[int(part)]
        document[int(last) if isinstance(document, list) else last] = value
    except (LookupError, ValueError, TypeError):
        raise InvalidCluster(
            [
                f"--sweep must name a key of the cluster file, with numbers for list entries, "
                f"such as nodes.0.count, was {key!r}"
            ]
        ) from None


def run_names(parts: Sequence[Sequence[str]]) -> list[str]:
    """A unique name for each run, valid as a file name, from its policy and value.

    Characters other than letters, digits and `-._~` are percent-encoded, as in URLs.
    """
    taken: set[str] = set()
    found = []
    for each in parts:
        base = "-".join(quote(part, safe="") for part in each)[:_MAX_NAME_LENGTH]
        name, number = base, 1
        while name.lower() in taken:  # some file systems ignore case
            number += 1
            name = f"{base}-{number}"
        taken.add(name.lower())
        found.append(name)
    return found
