"""Makes a small exported program with random weights: two layers, rows of four numbers."""

import hashlib
import warnings
from pathlib import Path

import torch

FEATURES = 4
CLASSES = 3
HIDDEN = 16
MAX_ROWS = 256


class RowClassifier(torch.nn.Module):
    """Class scores and the best class of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, HIDDEN), torch.nn.GELU(), torch.nn.Linear(HIDDEN, CLASSES)
        )

    def forward(self, features: torch.Tensor) -> dict[str, torch.Tensor]:
        """`scores` [rows, 3] and `label` [rows] for `features` [rows, 4]."""
        scores = self.layers(features).softmax(dim=-1)
        return {"scores": scores, "label": scores.argmax(dim=-1)}


def write_program(name: str, path: Path) -> None:
    """Write the program to `path` (`.pt2`); `name` seeds its weights."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6])
    network = RowClassifier().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in sorted(network.named_parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    export(network, path)


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
