"""The experiment elvinger-plans on table A.1, which is not part of this repository."""

from collections.abc import Callable
from pathlib import Path

import pytest

from research.experiments.elvinger.plans import EXPERIMENT
from research.experiments.harness.experiment import ExperimentError, Settings


def test_the_stated_plans_and_two_figures(data: Callable[[str], Path], tmp_path: Path) -> None:
    folder = data("v100_profiles.csv").parent
    found = EXPERIMENT.run(Settings(is_quick=True, data=folder, out=tmp_path))
    stated, expected, predicted = found.tables
    assert {row[-1] for row in stated.rows} == {"yes"}
    ours = expected.columns.index("predicted-goodput")
    for row in predicted.rows:
        goodput = [value for value in row[3:] if isinstance(value, float)]
        assert row[ours] == pytest.approx(max(goodput), rel=0.01)
    assert all(path.stat().st_size > 10_000 for path in found.images)


def test_says_what_is_missing_without_the_profiles() -> None:
    with pytest.raises(ExperimentError, match=r"v100_profiles\.csv"):
        EXPERIMENT.run(Settings())
