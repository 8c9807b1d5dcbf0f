"""A program on a device: a graph that takes its weights and a request's tensors."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch

from runtime.engines.networks.skeletons import Skeleton
from runtime.engines.programs.graph import build_graph
from runtime.engines.programs.signature import Signature, read_signature
from runtime.errors import ModelInvalid
from runtime.storage.listing import PROGRAM_SUFFIX
from runtime.weights.archive import Archive, parse_json, require_object
from runtime.weights.archive_tensors import input_views

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch.fx import GraphModule

    from runtime.weights.archive_tensors import TensorView

MAJOR_VERSION = 8
"""Of `torch._export.serde.schema`: other ones are laid out otherwise."""


class Program:
    """Runs a graph; one user at a time. Weights come and go with `ProgramSkeleton`."""

    def __init__(
        self,
        module: GraphModule,
        order: Sequence[str],
        views: Mapping[str, TensorView],
        device: torch.device,
    ) -> None:
        self.device = device
        self.are_rows_apart = False
        """Whether rows of a batch were seen not to touch each other, so that requests can share it.
        """
        self._module = module
        self._order = tuple(order)
        self._views = views
        self._weights: dict[str, torch.Tensor] = {}

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The outputs for inputs by their names in the graph; raises whatever torch raises."""
        weights = self._weights
        arguments = [weights[name] if name in weights else inputs[name] for name in self._order]
        outputs: tuple[torch.Tensor, ...] = self._module(*arguments)
        return outputs

    def put_in(self, flat: Mapping[str, torch.Tensor]) -> None:
        """Take weights as they lie on the device."""
        self.are_rows_apart = False
        self._weights = {
            name: view.of(flat[view.stored.name]) for name, view in self._views.items()
        }

    def take_out(self) -> None:
        """Drop the weights."""
        self.are_rows_apart = False
        self._weights = {}


class ProgramSkeleton(Skeleton):
    """A program that its weights are put into and taken out of."""

    def __init__(self, signature: str, program: Program) -> None:
        super().__init__(signature, program, ())
        self._program = program

    def put_in(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Give the program its weights; what a first inference showed held for others."""
        self.has_inferred = False
        self._program.put_in(weights)

    def take_out(self) -> None:
        """Drop the weights."""
        self._program.take_out()


def program_path(folder: Path) -> Path | None:
    """The archive of a model that is a program; None where it is none; raises ModelInvalid."""
    found = [
        path for path in sorted(folder.rglob(f"*{PROGRAM_SUFFIX}")) if not is_hidden(path, folder)
    ]
    if len(found) > 1:
        raise ModelInvalid(f"the model has several programs: {[path.name for path in found]}")
    return found[0] if found else None


def is_hidden(path: Path, folder: Path) -> bool:
    """Whether a file is the cache's own, such as one that a library has just fetched."""
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def read_document(path: Path) -> Mapping[str, Any]:
    """A program's JSON document; raises ModelInvalid."""
    document = require_object(
        parse_json(Archive(path).program_bytes(), "the document"), "the document"
    )
    version = document.get("schema_version")
    major = version.get("major") if isinstance(version, dict) else None
    if major != MAJOR_VERSION:
        raise ModelInvalid(
            f"the program has schema version {version}, {MAJOR_VERSION}.* is served;"
            f" export it with torch {torch.__version__.partition('+')[0]}"
        )
    return document


def signature_of_program(path: Path) -> Signature:
    """What the program takes and gives; raises ModelInvalid."""
    return read_signature(read_document(path))


def digest_of_program(path: Path) -> str:
    """What two archives have in common that are one program with other weights."""
    archive = Archive(path)
    digest = hashlib.sha256(archive.program_bytes())
    for directory, kind in (("data/weights/", "weights"), ("data/constants/", "constants")):
        digest.update(repr(sorted(archive.tensor_entries(directory, kind).items())).encode())
    return digest.hexdigest()


def build_program(path: Path, signature: str, device: torch.device) -> ProgramSkeleton:
    """The program without weights; raises ModelInvalid. Blocks."""
    document = read_document(path)
    about = read_signature(document)
    views = input_views(Archive(path), about.weights)
    module, order = build_graph(
        require_object(
            require_object(document.get("graph_module"), "the module").get("graph"), "the graph"
        ),
        views.keys(),
        device,
    )
    unknown = set(order) - views.keys() - {port.given for port in about.inputs}
    if unknown:
        raise ModelInvalid(f"the program's graph takes {sorted(unknown)[:3]} from nowhere")
    return ProgramSkeleton(signature, Program(module, order, views, device))
