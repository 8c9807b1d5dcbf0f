"""The models of the campaign's workflow, small ones of the kinds that pods serve.

The numbers of `wide` and `twice` are whole and below 2**24, so that every pod gives the same ones.
"""

from pathlib import Path
from typing import Final

import torch

from pilotlight.sample_models.make_model import make_model
from tests.runtime import archives

WIDTHS: Final = {"narrow": 1 << 15, "broad": 1 << 17}
"""128 KiB, which pods fetch as raw bytes, and 512 KiB, which they map."""


class Widened(torch.nn.Module):
    """A row of one number to `width` numbers: the number plus 0 to 6, in turns."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.offsets = torch.nn.Parameter(torch.arange(width, dtype=torch.float32) % 7)

    def forward(self, number: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"row": number + self.offsets}


class Doubled(torch.nn.Module):
    def forward(self, row: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"row": row * 2}


class Ends(torch.nn.Module):
    """The first and the last number of each row."""

    def forward(self, row: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"ends": torch.stack((row[:, 0], row[:, -1]), dim=1)}


def expected_ends(number: int, width: int) -> list[float]:
    """What `Ends` gives for a number that was widened and doubled."""
    return [2.0 * number, 2.0 * (number + (width - 1) % 7)]


def make_models(folder: Path) -> dict[str, Path]:
    """A folder for each model, by name."""
    made = {
        "judge": make_model("tiny-bert", folder / "judge"),
        "writer": make_model("tiny-gpt2", folder / "writer"),
    }
    rows = torch.export.Dim("rows", max=64)
    for size, width in WIDTHS.items():
        for name, module, columns in (
            ("widen", Widened(width), 1),
            ("double", Doubled(), width),
            ("ends", Ends(), width),
        ):
            made[f"{name}-{size}"] = folder / f"{name}-{size}"
            archives.export(
                module,
                made[f"{name}-{size}"] / "model.pt2",
                torch.ones(2, columns),
                dynamic=({0: rows},),
            )
    return made
