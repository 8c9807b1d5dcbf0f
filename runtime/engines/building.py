"""The format of a model's folder, and its skeleton. Imports optional formats on first use."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from runtime.engines.networks import network
from runtime.errors import ModelInvalid
from runtime.storage.listing import PIPELINE_INDEX, PROGRAM_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

    from registry.domain.model import Task
    from runtime.engines.networks.skeletons import Skeleton
    from runtime.weights.safetensors_files import StoredTensor


def is_pipeline(folder: Path) -> bool:
    """Whether the folder holds a pipeline of diffusers."""
    return (folder / PIPELINE_INDEX).exists()


def program_path(folder: Path) -> Path | None:
    """The folder's exported program, None without one; raises ModelInvalid for several."""
    files = sorted(folder.rglob(f"*{PROGRAM_SUFFIX}"))
    found = [path for path in files if not is_hidden(path, folder)]
    if len(found) > 1:
        raise ModelInvalid(f"the model has several programs: {[path.name for path in found]}")
    return found[0] if found else None


def is_hidden(path: Path, folder: Path) -> bool:
    """Whether a file is the cache's own, such as a partial download of a library."""
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def skeleton_key(folder: Path, declared: Task | None, tensors: Sequence[StoredTensor]) -> str:
    """A key that is equal for models that can use one skeleton."""
    program = program_path(folder)
    if program is not None:
        from runtime.engines.programs.program import program_digest

        return hashlib.sha256(f"program {program_digest(program)}".encode()).hexdigest()
    if is_pipeline(folder):
        from runtime.engines.images.pipeline import pipeline_key

        return pipeline_key(folder, tensors)
    return network.skeleton_key(folder, declared, tensors)


def build_skeleton(
    folder: Path,
    declared: Task | None,
    tensors: Sequence[StoredTensor],
    *,
    key: str,
    device: torch.device,
) -> Skeleton:
    """A skeleton for weights of these names and shapes; raises LoadFailed. Blocks."""
    program = program_path(folder)
    if program is not None:
        from runtime.engines.programs.program import build_program

        return build_program(program, key, device)
    if is_pipeline(folder):
        from runtime.engines.images.pipeline import build_pipeline

        return build_pipeline(folder, tensors, key=key, device=device)
    shapes = {tensor.name: tensor.shape for tensor in tensors}
    return network.build_skeleton(folder, declared, shapes, key=key, device=device)
