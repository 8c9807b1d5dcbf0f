"""The demo applications: disjoint parts, and variants that differ in accuracy and in classes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from research.experiments.sneakpeek.make_applications import PARTS, part_rows

SIZES = ("small", "medium", "large")
CLASSES = {"digits": 10, "tumours": 2, "wine": 3}


def test_all_copies_of_an_example_are_in_one_part_and_classes_are_alike() -> None:
    labels = np.repeat([0, 1, 2], [60, 50, 20])
    found = part_rows(labels, 12, np.random.default_rng(1))
    assert list(found) == list(PARTS)
    originals = [set(rows.tolist()) for rows in found.values()]
    assert sum(map(len, originals)) == len(set.union(*originals)) == len(labels)
    for part, rows in found.items():
        assert (np.unique(rows, return_counts=True)[1] == 12).all()
        shares = np.bincount(labels[rows]) / (12 * np.bincount(labels))
        assert shares == pytest.approx(PARTS[part], abs=0.05)


@pytest.mark.slow
def test_variants_differ_in_accuracy_and_are_good_at_different_classes(tmp_path: Path) -> None:
    module = "research.experiments.sneakpeek.make_applications"
    made = tmp_path / "made"
    subprocess.run([sys.executable, "-m", module, str(made)], check=True, timeout=1200)
    for name, classes in CLASSES.items():
        with np.load(made / f"{name}-profile.npz") as archive:
            labels = archive["labels"]
            rights = [archive[f"predicted {name}-{size}"] == labels for size in SIZES]
        accuracies = [right.mean() for right in rights]
        assert accuracies[0] + 0.03 <= accuracies[1]
        assert accuracies[1] + 0.02 <= accuracies[2]
        recalls = [[right[labels == each].mean() for each in range(classes)] for right in rights]
        small, medium, _ = recalls
        assert any(fast > slow for fast, slow in zip(small, medium, strict=True)), name
        assert all((made / f"models/{name}-{size}/model.pt2").is_file() for size in SIZES)
