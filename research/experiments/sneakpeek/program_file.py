"""Writes a network as an exported program (`.pt2`)."""

import warnings
from pathlib import Path

import torch

FEATURES = 4
MAX_ROWS = 256


def export(
    network: torch.nn.Module, path: Path, width: int = FEATURES, max_rows: int = MAX_ROWS
) -> None:
    """Export a network that takes `features` [rows, width], for 1 to `max_rows` rows."""
    rows = torch.export.Dim("rows", min=1, max=max_rows)
    with warnings.catch_warnings():  # deprecations inside torch
        warnings.simplefilter("ignore")
        program = torch.export.export(
            network, (torch.zeros(2, width),), dynamic_shapes=({0: rows},)
        )
        torch.export.save(program, path)
