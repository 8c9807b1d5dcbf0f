"""Liu 2025, section 3.1: what the thesis observed of Ray Serve, and the rules beside it."""

from pathlib import Path

import pytest

from research.experiments.harness.experiment import Settings
from research.experiments.liu import replicas
from research.experiments.liu.replicas_run import (
    PREDICTIVE,
    RAY_SERVE,
    REQUESTS,
    RULES,
    RayServeParams,
    RayServeState,
    ray_serve_replicas,
    service_s,
    simulate_replicas,
)


def replicas_over_time(ongoing: float, until_s: int, first: int = 1) -> list[int]:
    """The number of replicas each second, at a constant number of ongoing requests."""
    state, found = RayServeState(), [first]
    for now_s in range(1, until_s + 1):
        count, state = ray_serve_replicas(ongoing, found[-1], state, now_s, RayServeParams())
        found.append(count)
    return found


def test_ray_serve_waits_for_a_report_and_its_delay_before_it_adds_replicas() -> None:
    found = replicas_over_time(ongoing=100, until_s=60)
    assert found[:40] == [1] * 40
    assert found[40:] == [4] * 21


def test_ray_serve_keeps_its_number_at_the_target() -> None:
    assert set(replicas_over_time(ongoing=2, until_s=100)) == {1}
    assert set(replicas_over_time(ongoing=6, until_s=100, first=3)) == {3}


def test_ray_serve_removes_replicas_only_after_ten_minutes() -> None:
    found = replicas_over_time(ongoing=0, until_s=700, first=4)
    assert found[:610] == [4] * 610
    assert found[610:] == [1] * 91


def test_ray_serve_as_in_the_thesis() -> None:
    run = simulate_replicas(RAY_SERVE)
    assert run.alone == pytest.approx(40, abs=5)
    first, *others = run.by_pod
    assert service_s(first[0]) == pytest.approx(3.711, abs=0.01)
    assert [service_s(pod[0]) for pod in others] == pytest.approx([2.0] * 3, abs=0.01)
    assert service_s(first[-1]) == pytest.approx(0.923, abs=0.01)


def test_our_rule_starts_pods_at_once() -> None:
    ours, theirs = simulate_replicas(PREDICTIVE), simulate_replicas(RAY_SERVE)
    assert ours.alone <= 1  # further copies wait for the first measured time
    assert ours.total_s < 0.6 * theirs.total_s


def test_the_experiment_draws_every_rule(tmp_path: Path) -> None:
    result = replicas.run(Settings(is_quick=True, out=tmp_path))
    assert len(result.tables[0].rows) == 1 + len(RULES)
    assert [image.read_bytes()[:4] for image in result.images] == [b"\x89PNG"]
    for rule in RULES:
        assert len(simulate_replicas(rule).responses) == REQUESTS
