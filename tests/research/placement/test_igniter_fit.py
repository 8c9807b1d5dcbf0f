"""Coefficients fitted to profiles, from which the planner predicts what was not measured."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.placement.problem import PlanParams, Workload
from registry.domain.pod import PairFactor, Profile, ProfilePoint, ShareFactor
from research.placement.fleet import accelerators_of
from research.placement.igniter import plan_igniter
from research.placement.igniter_file import FIT
from research.placement.igniter_fit import fit_profile, mean_busy_pct
from research.placement.igniter_model import NAME, Resident, predict, slower
from tests.research.placement.igniter_cases import fitted

_SIZES = (1, 2, 4, 8, 16)
_SHARES = (25.0, 50.0)


def _ms(rows: int, share_pct: float) -> float:
    """Time of a model of which 2 ms gain nothing from a larger share."""
    return (100 + 300 * rows) / share_pct + 2


def _profile(shares: tuple[float, ...] = _SHARES, sizes: tuple[int, ...] = _SIZES) -> Profile:
    points = tuple(
        ProfilePoint(rows, _ms(rows, 100) / 1000, sm_utilization_pct=60.0) for rows in sizes
    )
    return Profile(
        "m@1",
        "cpu",
        points,
        shares=tuple(
            ShareFactor(share, rows, _ms(rows, share) / _ms(rows, 100))
            for share in shares
            for rows in sizes
        ),
        pairs=(PairFactor("default/b", 1.3),),
    )


@pytest.mark.parametrize(("rows", "share_pct"), [(3, 100.0), (12, 75.0), (16, 40.0)])
def test_predicts_batches_and_shares_between_the_measured(rows: int, share_pct: float) -> None:
    fit = fit_profile(_profile(), {})
    assert fit is not None
    [latency] = predict([Resident(fit.model, rows, share_pct)], fit.hardware)
    assert latency.total == pytest.approx(_ms(rows, share_pct), rel=0.02)
    assert "fitted to 15 latencies (mean error 0 %) and 0 pairs" in fit.source


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.2, 5.0), min_size=10, max_size=10), st.integers(1, 32))
def test_noise_makes_no_batch_take_less_than_no_time(noise: list[float], rows: int) -> None:
    exact = _profile(shares=(50.0,))
    points = tuple(
        replace(each, latency_s=each.latency_s * factor)
        for each, factor in zip(exact.points, noise[:5], strict=True)
    )
    shares = tuple(
        replace(each, factor=max(1.0, each.factor * factor))
        for each, factor in zip(exact.shares, noise[5:], strict=True)
    )
    fit = fit_profile(replace(exact, points=points, shares=shares), {"default/b": 60.0})
    assert fit is not None
    for share_pct in (fit.hardware.share_step_pct, 75.0, 100.0):
        [latency] = predict([Resident(fit.model, rows, share_pct)], fit.hardware)
        assert latency.total > 0


def test_a_neighbour_that_keeps_as_much_busy_as_the_measured_one_slows_down_as_it_did() -> None:
    used = mean_busy_pct(_profile().points)
    assert used == 60.0
    fit = fit_profile(_profile(), {"default/b": used})
    assert fit is not None
    mine = Resident(fit.model, 8, 50.0)
    alone, beside = predict([mine], fit.hardware)[0], predict([mine, mine], fit.hardware)[0]
    assert beside.gpu == pytest.approx(1.3 * alone.gpu)


def test_a_model_that_became_slower_is_predicted_slower_by_as_much() -> None:
    fit = fit_profile(_profile(), {"default/b": 60.0})
    assert fit is not None
    mine, late = Resident(fit.model, 8, 50.0), Resident(slower(fit.model, 1.5), 8, 50.0)
    before, after = predict([mine] * 2, fit.hardware)[0], predict([late] * 2, fit.hardware)[0]
    assert after.gpu == pytest.approx(1.5 * before.gpu)


@pytest.mark.parametrize(
    "profile",
    [
        pytest.param(_profile(shares=()), id="no-share"),
        pytest.param(_profile(shares=(100.0,)), id="only-the-whole"),
        pytest.param(_profile(sizes=(1, 2)), id="two-batches"),
        pytest.param(replace(_profile(), points=()), id="nothing"),
    ],
)
def test_too_few_measurements_give_no_coefficients(profile: Profile) -> None:
    assert fit_profile(profile, {}) is None


def test_plans_from_a_profile_keep_within_the_measured_shares() -> None:
    fit = FIT.fit(_profile(), {"default/b": 60.0})
    assert fit is not None
    profiles = fitted(*(replace(_profile(), key=name, fits={NAME: fit}) for name in "ab"))
    loads = [Workload("a", 100, 0.2), Workload("b", 20, 0.4)]
    found = plan_igniter(loads, accelerators_of("cpu", 1), profiles, (), PlanParams())
    assert not any(each.reason for each in found.models)
    shares = [each.share_pct or 0.0 for each in found.replicas]
    assert min(shares) >= 25
    assert sum(shares) <= 100
