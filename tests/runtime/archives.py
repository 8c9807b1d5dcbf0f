"""Exported programs and what can be wrong with one, for tests."""

import json
import os
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

PROGRAM = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"
SAMPLE_INPUTS = "data/sample_inputs/model.pt"


class TouchFile:
    """Unpickled, it makes a folder."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self._path,)


def export(
    network: torch.nn.Module, path: Path, *inputs: torch.Tensor, dynamic: Any = None
) -> Path:
    """Export a network in evaluation mode to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():  # torch's own parts warn of each other
        warnings.simplefilter("ignore")
        program = torch.export.export(network.eval(), inputs, dynamic_shapes=dynamic)
        torch.export.save(program, path)
    return path


def changed(
    archive: Path, path: Path, change: Callable[[dict[str, bytes]], None], *, compress: bool = False
) -> Path:
    """A copy of an archive whose records `change` has changed; their folder is left out."""
    with zipfile.ZipFile(archive) as source:
        records = {name.partition("/")[2]: source.read(name) for name in source.namelist()}
    change(records)
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as target:
        for name, content in records.items():
            target.writestr(f"model/{name}", content)
    return path


def edited(record: str, edit: Callable[[Any], None]) -> Callable[[dict[str, bytes]], None]:
    """A change of one JSON record."""

    def change(records: dict[str, bytes]) -> None:
        document = json.loads(records[record])
        edit(document)
        records[record] = json.dumps(document).encode()

    return change


def nodes_of(document: Any) -> list[dict[str, Any]]:
    """The nodes of a program's graph."""
    nodes: list[dict[str, Any]] = document["graph_module"]["graph"]["nodes"]
    return nodes
