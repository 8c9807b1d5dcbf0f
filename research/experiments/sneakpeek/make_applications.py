"""Trains the variants of three demo applications on scikit-learn's bundled data.

    python -m research.experiments.sneakpeek.make_applications DIR

Writes `DIR/models/NAME/model.pt2` for three variants each of digits, tumours and wine, and
`DIR/APPLICATION-PART.npz` with inputs, labels and the variants' predictions. The parts train,
profile and requests share no original example. Seeded noise makes the tasks hard enough. The faster
variants are trained on skewed class mixes, so that variants are good at different classes.
"""

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from torch import nn

from research.experiments.sneakpeek.program_file import export

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]


PARTS: Final = {"train": 0.4, "profile": 0.3, "requests": 0.3}
_STEPS: Final = 300
_MAX_ROWS: Final = 64
_JITTER: Final = 0.02
"""Standard deviation of the perturbations that an ensemble averages over."""


@dataclass(frozen=True, slots=True)
class _Variant:
    name: str
    network: Callable[[], nn.Module]
    columns: Sequence[int]
    weights: Sequence[float]
    """Of the classes, in training."""
    members: int
    """Perturbed copies of an input whose scores are averaged; they set the latency."""


@dataclass(frozen=True, slots=True)
class _Application:
    name: str
    inputs: Floats
    labels: Labels
    copies: int
    """Noisy copies of each example."""
    noise: float
    projection: Floats
    """[columns, dimensions]: what the nearest neighbours are shown."""
    variants: tuple[_Variant, ...]


class Ensemble(nn.Module):
    """Mean class scores over perturbed copies of the input."""

    def __init__(
        self, network: nn.Module, columns: Sequence[int], width: int, members: int
    ) -> None:
        super().__init__()
        self.network = network
        self.select: torch.Tensor
        self.jitter: torch.Tensor
        select = torch.zeros(width, len(columns))
        select[list(columns), range(len(columns))] = 1.0
        self.register_buffer("select", select)
        generator = torch.Generator().manual_seed(members)
        jitter = torch.randn(members, len(columns), generator=generator) * _JITTER
        self.register_buffer("jitter", jitter)

    def forward(self, features: torch.Tensor) -> dict[str, torch.Tensor]:
        """`scores` [rows, classes] and `label` [rows] for `features` [rows, width]."""
        chosen = features @ self.select
        copies = chosen[:, None, :] + self.jitter
        scores = self.network(copies.flatten(0, 1)).softmax(dim=-1)
        mean = scores.reshape(features.shape[0], self.jitter.shape[0], -1).mean(dim=1)
        return {"scores": mean, "label": mean.argmax(dim=-1)}


def make_applications(folder: Path) -> list[str]:
    """Make all applications; returns a line per variant with its accuracy on the profile part."""
    torch.set_num_threads(1)
    lines = []
    for at, application in enumerate((_digits(), _tumours(), _wine())):
        parts = _parts(application, seed=at)
        predictions: dict[str, dict[str, Labels]] = {part: {} for part in parts}
        for variant in application.variants:
            module = _train(variant, *parts["train"])
            target = folder / "models" / variant.name
            target.mkdir(parents=True, exist_ok=True)
            export(module, target / "model.pt2", application.inputs.shape[1], _MAX_ROWS)
            for part, (inputs, _) in parts.items():
                predictions[part][variant.name] = _predict(module, inputs)
            share = (predictions["profile"][variant.name] == parts["profile"][1]).mean()
            lines.append(f"{variant.name}: accuracy {share:.3f}")
        for part, (inputs, labels) in parts.items():
            arrays: dict[str, np.ndarray] = {
                "features": inputs,
                "labels": labels,
                "projection": application.projection,
                **{f"predicted {name}": each for name, each in predictions[part].items()},
            }
            np.savez(folder / f"{application.name}-{part}.npz", **arrays)  # type: ignore[arg-type]
    return lines


def _parts(application: _Application, seed: int) -> dict[str, tuple[Floats, Labels]]:
    """Noisy copies by part."""
    rng = np.random.default_rng(seed)
    found = {}
    for part, rows in part_rows(application.labels, application.copies, rng).items():
        noise = rng.standard_normal((len(rows), application.inputs.shape[1]))
        inputs = application.inputs[rows] + application.noise * noise
        found[part] = (inputs.astype(np.float32), application.labels[rows])
    return found


def part_rows(
    labels: Labels, copies: int, rng: np.random.Generator
) -> dict[str, NDArray[np.int64]]:
    """The original example of each copy, by part: all its copies are in one part, classes alike."""
    chosen: dict[str, list[int]] = {part: [] for part in PARTS}
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        bounds = np.cumsum([round(share * len(members)) for share in PARTS.values()])[:-1]
        for part, each in zip(PARTS, np.split(members, bounds), strict=True):
            chosen[part] += each.tolist()
    return {part: np.repeat(members, copies) for part, members in chosen.items()}


def _train(variant: _Variant, inputs: Floats, labels: Labels) -> Ensemble:
    torch.manual_seed(0)
    network = variant.network()
    features = torch.from_numpy(inputs[:, list(variant.columns)])
    target = torch.from_numpy(labels)
    loss = nn.CrossEntropyLoss(weight=torch.tensor(variant.weights))
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=1e-3)
    for _ in range(_STEPS):
        optimiser.zero_grad()
        loss(network(features), target).backward()
        optimiser.step()
    return Ensemble(network, variant.columns, inputs.shape[1], variant.members).eval()


def _predict(module: Ensemble, inputs: Floats) -> Labels:
    """Without the perturbations, which change no more than ties."""
    with torch.no_grad():
        scores = module.network(torch.from_numpy(inputs) @ module.select)
    labels: Labels = scores.argmax(dim=-1).numpy()
    return labels


def _digits() -> _Application:
    from sklearn.datasets import load_digits

    data = load_digits()
    means = np.zeros((64, 16), np.float32)
    for pixel in range(64):
        means[pixel, pixel // 16 * 4 + pixel % 8 // 2] = 0.25
    low, high = [1.0] * 5 + [0.35] * 5, [0.3] * 5 + [1.0] * 5
    every = tuple(range(64))
    return _Application(
        "digits",
        (data.data / 16).astype(np.float32),
        data.target,
        2,
        0.3,
        means,
        (
            _Variant("digits-small", lambda: _Means(means), every, low, 150),
            _Variant("digits-medium", lambda: _perceptron(64, 12, 10), every, high, 2500),
            _Variant("digits-large", _Convolutional, every, [1.0] * 10, 600),
        ),
    )


def _tumours() -> _Application:
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    inputs = _standardised(data.data)
    labels = 1 - data.target  # 0: benign, the frequent class
    return _Application(
        "tumours",
        inputs,
        labels,
        4,
        0.5,
        _columns(30, range(4)),
        (
            _Variant("tumours-small", lambda: nn.Linear(2, 2), range(2), [1.0, 0.35], 8_000),
            _Variant("tumours-medium", lambda: nn.Linear(8, 2), range(8), [0.5, 1.0], 25_000),
            _Variant("tumours-large", lambda: nn.Linear(30, 2), range(30), [1.0, 1.0], 60_000),
        ),
    )


def _wine() -> _Application:
    from sklearn.datasets import load_wine

    data = load_wine()
    return _Application(
        "wine",
        _standardised(data.data),
        data.target,
        12,
        0.5,
        _columns(13, range(4)),
        (
            _Variant("wine-small", lambda: nn.Linear(3, 3), range(3), [1.0, 0.5, 0.3], 7_000),
            _Variant("wine-medium", lambda: nn.Linear(6, 3), range(6), [0.4, 1.0, 1.0], 22_000),
            _Variant("wine-large", lambda: nn.Linear(13, 3), range(13), [1.0] * 3, 70_000),
        ),
    )


class _Means(nn.Module):
    """A linear classifier of 4x4 means."""

    def __init__(self, means: Floats) -> None:
        super().__init__()
        self.means: torch.Tensor
        self.register_buffer("means", torch.from_numpy(means))
        self.linear = nn.Linear(16, 10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.linear(pixels @ self.means)
        return scores


class _Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(128, 10),
        )

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layers(pixels.reshape(-1, 1, 8, 8))
        return scores


def _perceptron(inputs: int, hidden: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def _standardised(values: NDArray[np.float64]) -> Floats:
    scaled: Floats = ((values - values.mean(axis=0)) / values.std(axis=0)).astype(np.float32)
    return scaled


def _columns(width: int, chosen: Sequence[int]) -> Floats:
    return np.eye(width, dtype=np.float32)[:, list(chosen)]


def main(target: Path) -> None:
    """Make them under a lock, unless they are there; the folder appears when it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".making-{target.name}")
    with FileLock(target.with_name(f".{target.name}.lock")):
        if not target.is_dir():
            shutil.rmtree(unfinished, ignore_errors=True)
            sys.stdout.write("\n".join(make_applications(unfinished)) + "\n")
            unfinished.rename(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
