"""A program whose inference takes a fixed time of one core and no sleep: layers of equal products.

`python -m benchmarks.overload.model FOLDER LAYERS` writes it.
"""

import sys
from pathlib import Path
from typing import Final

import torch

from research.experiments.sneakpeek.program_file import FEATURES, export

_WIDTH: Final = 512


class FixedWork(torch.nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = layers
        generator = torch.Generator().manual_seed(0)
        scale = _WIDTH**-0.5
        self.first = torch.nn.Linear(FEATURES, _WIDTH)
        weight = torch.randn(_WIDTH, _WIDTH, generator=generator) * scale
        self.weight = torch.nn.Parameter(weight)

    def forward(self, features: torch.Tensor) -> dict[str, torch.Tensor]:
        """`scores` [rows, 4] for `features` [rows, 4]."""
        hidden = self.first(features)
        for _ in range(self.layers):
            hidden = torch.tanh(hidden @ self.weight)
        return {"scores": hidden[:, :FEATURES]}


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    export(FixedWork(int(sys.argv[2])).eval(), folder / "model.pt2")


if __name__ == "__main__":
    main()
