"""Days of changing rates, planned anew when it pays, at every tick, or never."""

from collections.abc import Callable
from pathlib import Path

import pytest

from research.experiments.elvinger.drift import DriftTask, day_rates, run_day
from tests.servers import REPOSITORY

_FILE = REPOSITORY / "tests" / "autoscaler" / "placement" / "synthetic_profiles.csv"
_MODELS = ("large", "wide")
_MORNING, _EVENING = (220.0, 10.0), (10.0, 220.0)


def _run(way: str, rates: tuple[tuple[float, ...], ...]) -> tuple[float, int, int]:
    found = run_day(DriftTask(way, rates, _FILE, _MODELS, gpus=2))
    return found.goodput_rps, found.moves, found.plans


def test_constant_rates_need_one_plan_and_no_move() -> None:
    goodput, moves, plans = _run("when it pays", (_MORNING,) * 4)
    assert (moves, plans) == (0, 1)
    assert goodput > 0.9 * sum(_MORNING)


def test_a_mix_that_changes_moves_copies_when_it_pays() -> None:
    rates = (_MORNING,) * 3 + (_EVENING,) * 3
    never, when_it_pays, every = (
        _run(way, rates) for way in ("never", "when it pays", "every tick")
    )
    assert never[1:] == (0, 1)
    assert when_it_pays[2] == 2
    assert 0 < when_it_pays[1] <= every[1]
    assert when_it_pays[0] > never[0]
    assert when_it_pays[0] >= 0.95 * every[0]


def test_a_shifted_day_has_the_same_regions_at_other_hours(data: Callable[[str], Path]) -> None:
    file = data("huawei_cold_starts_per_minute.csv.gz")
    traced, shifted = day_rates(file), day_rates(file, is_shifted=True)
    assert len(traced) == len(shifted) == 72
    for rates in (traced, shifted):
        assert max(map(sum, rates)) == pytest.approx(3000)
    shares = [[max(tick) / sum(tick) for tick in rates] for rates in (traced, shifted)]
    assert max(shares[1]) - min(shares[1]) > max(shares[0]) - min(shares[0])
