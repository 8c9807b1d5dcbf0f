"""The engine of exported programs (`torch.export`)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from runtime.engines.programs.program import build_program, program_digest

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from runtime.engines.engine import ModelFolder
    from runtime.engines.skeletons import Skeleton


class ProgramEngine:
    name = "torch.export"
    takes_dtype = False
    uses_device = True

    def __init__(self, path: Path) -> None:
        self._path = path

    def skeleton_key(self, model: ModelFolder) -> str:
        return hashlib.sha256(f"program {program_digest(self._path)}".encode()).hexdigest()

    def build_skeleton(
        self, model: ModelFolder, *, key: str, device: torch.device, threads: int
    ) -> Skeleton:
        return build_program(self._path, key, device)

    def working_bytes(self, weight_bytes: int) -> int:
        return 0
