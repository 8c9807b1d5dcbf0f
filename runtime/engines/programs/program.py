"""A program on a device: a graph whose arguments are its weights and a request's tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from runtime.engines.engine import Engine, ModelFolder, Skeleton
from runtime.engines.programs.graph import build_graph
from runtime.engines.programs.signature import Signature, read_signature
from runtime.errors import ModelInvalid
from runtime.weights.archive import (
    CONSTANTS,
    WEIGHTS,
    Archive,
    TensorView,
    input_views,
    parse_json,
    require_object,
)

if TYPE_CHECKING:
    from torch.fx import GraphModule


MAJOR_VERSION = 8
"""Supported version of `torch._export.serde.schema`; other versions have another layout."""


class Program:
    """Runs a graph, for one caller at a time. `ProgramSkeleton` attaches and detaches weights."""

    def __init__(
        self,
        module: GraphModule,
        order: Sequence[str],
        views: Mapping[str, TensorView],
        device: torch.device,
    ) -> None:
        self.device = device
        self.are_rows_independent = False
        """Whether a check found that rows do not affect each other, so requests can be batched."""
        self._module = module
        self._order = tuple(order)
        self._views = views
        self._weights: dict[str, torch.Tensor] = {}

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The outputs; inputs by their names in the graph. Raises any error of torch."""
        weights = self._weights
        arguments = [weights[name] if name in weights else inputs[name] for name in self._order]
        outputs: tuple[torch.Tensor, ...] = self._module(*arguments)
        return outputs

    def attach(self, flat: Mapping[str, torch.Tensor]) -> None:
        self.are_rows_independent = False
        self._weights = {
            name: view.apply_to(flat[view.stored.name]) for name, view in self._views.items()
        }

    def detach(self) -> None:
        self.are_rows_independent = False
        self._weights = {}


class ProgramSkeleton(Skeleton):
    """A program whose weights can be attached and detached."""

    def __init__(self, key: str, program: Program) -> None:
        super().__init__(key, program, ())
        self._program = program

    def attach(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Attach weights; the first inference checks again whether rows are independent."""
        self.has_inferred = False
        self._program.attach(weights)

    def detach(self) -> None:
        self._program.detach()


def read_document(path: Path) -> Mapping[str, Any]:
    """A program's JSON document; raises ModelInvalid."""
    document = require_object(
        parse_json(Archive(path).program_bytes(), "the document"), "the document"
    )
    version = document.get("schema_version")
    major = version.get("major") if isinstance(version, dict) else None
    if major != MAJOR_VERSION:
        raise ModelInvalid(
            f"the program has schema version {version}, only {MAJOR_VERSION}.* is supported;"
            f" export it with torch {torch.__version__.partition('+')[0]}"
        )
    return document


def program_signature(path: Path) -> Signature:
    """The program's inputs and outputs; raises ModelInvalid."""
    return read_signature(read_document(path))


class ProgramEngine(Engine):
    name = "torch.export"

    def __init__(self, path: Path) -> None:
        self._path = path

    def skeleton_key(self, model: ModelFolder) -> str:
        """Equal for archives of one program with different weights."""
        archive = Archive(self._path)
        digest = hashlib.sha256(archive.program_bytes())
        for directory in (WEIGHTS, CONSTANTS):
            digest.update(repr(sorted(archive.tensor_entries(directory).items())).encode())
        return f"program {digest.hexdigest()}"

    def build_skeleton(
        self, model: ModelFolder, *, key: str, device: torch.device, threads: int
    ) -> Skeleton:
        document = read_document(self._path)
        signature = read_signature(document)
        views = input_views(Archive(self._path), signature.weights)
        module = require_object(document.get("graph_module"), "the module")
        graph = require_object(module.get("graph"), "the graph")
        built, order = build_graph(graph, views.keys(), device)
        unknown = set(order) - views.keys() - {port.graph_name for port in signature.inputs}
        if unknown:
            raise ModelInvalid(f"the program's graph has undefined inputs {sorted(unknown)[:3]}")
        return ProgramSkeleton(key, Program(built, order, views, device))
