"""What kind of model a folder holds, and how its skeleton is built."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from runtime.engines.images.pipeline import build_pipeline, is_pipeline, signature_of_pipeline
from runtime.engines.networks import network
from runtime.engines.programs.program import build_program, digest_of_program, program_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

    from registry.domain.model import Task
    from runtime.engines.networks.skeletons import Skeleton
    from runtime.weights.safetensors_files import StoredTensor


def signature_of(folder: Path, declared: Task | None, tensors: Sequence[StoredTensor]) -> str:
    """What two models must have in common to use one skeleton."""
    program = program_path(folder)
    if program is not None:
        return hashlib.sha256(f"program {digest_of_program(program)}".encode()).hexdigest()
    if is_pipeline(folder):
        return signature_of_pipeline(folder, tensors)
    return network.signature_of(folder, declared, tensors)


def build_skeleton(
    folder: Path,
    declared: Task | None,
    tensors: Sequence[StoredTensor],
    *,
    signature: str,
    device: torch.device,
) -> Skeleton:
    """A skeleton for weights of these names and shapes; raises ModelInvalid. Blocks."""
    program = program_path(folder)
    if program is not None:
        return build_program(program, signature, device)
    if is_pipeline(folder):
        return build_pipeline(folder, tensors, signature=signature, device=device)
    shapes = {tensor.name: tensor.shape for tensor in tensors}
    return network.build_skeleton(folder, declared, shapes, signature=signature, device=device)
