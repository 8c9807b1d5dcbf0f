"""The demo applications: real examples, their labels, and what each variant predicts for them.

Read from the folder that `make_applications` writes. Latencies and swap times are nominal, in the
ratio 1 : 4 : 16 of the variants; the experiment scales them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from research.experiments.harness.experiment import ExperimentError
from research.looks.training import predicted_labels, train
from variants.look_files import confusion_matrix
from variants.planning.window import VariantProfile, profiled_accuracy, recalls

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


SIZES: Final = ("small", "medium", "large")
LATENCY_S: Final = (0.00125, 0.005, 0.02)
SWAP_S: Final = (0.0025, 0.005, 0.01)
REQUEST_MIX: Final[Mapping[str, tuple[float, ...]]] = {
    "digits": (0.1,) * 10,
    "tumours": (0.95, 0.05),
    "wine": (0.8, 0.1, 0.1),
}
"""Class frequencies of requests; section 6.1 has the same: uniform, 95 % and 80 % of one class."""
KS: Final = (1, 5)


@dataclass(frozen=True, slots=True, eq=False)
class DemoApplication:
    """One application with the pool of examples that requests are drawn from."""

    name: str
    mix: tuple[float, ...]
    variants: tuple[VariantProfile, ...]
    test_mix: tuple[float, ...]
    """Class frequencies of the part that the variants were profiled on."""
    look: Mapping[int, VariantProfile]
    """The profile of the nearest neighbours, by k."""
    labels: Labels
    """[examples]."""
    evidence: Mapping[int, Floats]
    """[examples, classes], by k."""
    predicted: Mapping[str, Labels]
    """[examples], by variant, and by `look` for the nearest neighbours with k = 5."""

    def examples_of(self, label: int) -> Labels:
        return np.flatnonzero(self.labels == label)


def read_applications(folder: Path) -> list[DemoApplication]:
    """Raises ExperimentError where a file is missing or damaged."""
    try:
        return [_read(folder, name, mix) for name, mix in REQUEST_MIX.items()]
    except (OSError, KeyError, ValueError) as error:
        raise ExperimentError(f"{folder}: the demo applications cannot be read: {error}") from error


def _read(folder: Path, name: str, mix: tuple[float, ...]) -> DemoApplication:
    parts = {}
    for part in ("train", "profile", "requests"):
        with np.load(folder / f"{name}-{part}.npz", allow_pickle=False) as archive:
            parts[part] = {key: archive[key] for key in archive.files}
    training, validation, requests = parts["train"], parts["profile"], parts["requests"]
    classes = len(mix)
    names = [f"{name}-{size}" for size in SIZES]
    looks, evidence = {}, {}
    for k in KS:
        trained = train(
            training["features"],
            training["labels"],
            (validation["features"], validation["labels"]),
            classes=classes,
            k=k,
            projection=training["projection"],
        )
        looks[k] = _profile("look", trained.confusion)
        evidence[k] = trained.examples.evidence(requests["features"])
    labels = validation["labels"]
    return DemoApplication(
        name,
        mix,
        tuple(
            _profile(each, confusion_matrix(labels, validation[f"predicted {each}"], classes))
            for each in names
        ),
        tuple((np.bincount(labels, minlength=classes) / len(labels)).tolist()),
        looks,
        requests["labels"],
        evidence,
        {each: requests[f"predicted {each}"] for each in names}
        | {"look": predicted_labels(evidence[5])},
    )


def _profile(name: str, confusion: NDArray[np.int64]) -> VariantProfile:
    recall = tuple(recalls(confusion).tolist())
    return VariantProfile(name, profiled_accuracy(confusion), recall)


def profile_rows(applications: Sequence[DemoApplication]) -> list[tuple[str | float, ...]]:
    """Accuracy of each variant and of the look, with their lowest and highest recall."""
    return [
        (app.name, each.name, each.accuracy, min(each.recalls), max(each.recalls))
        for app in applications
        for each in (*app.variants, app.look[5])
    ]
