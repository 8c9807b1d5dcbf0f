"""Knative's rule as it is described: two windows, panic, and none fewer while it lasts."""

from __future__ import annotations

from autoscaler.scaling.kpa import KpaParams, KpaState, kpa_pods

PARAMS = KpaParams(slots=10)


def _after(samples: list[tuple[float, float]], ready: int) -> list[int]:
    state, found = KpaState(), []
    for at_s, concurrency in samples:
        pods, state = kpa_pods(concurrency, ready, state, at_s, PARAMS)
        found.append(pods)
    return found


def test_pods_keep_the_mean_concurrency_at_its_target() -> None:
    assert _after([(at, 14.0) for at in range(0, 60, 2)], ready=2)[-1] == 2
    assert _after([(at, 15.0) for at in range(0, 60, 2)], ready=2)[-1] == 3


def test_it_panics_at_twice_the_pods_and_has_none_fewer_while_it_lasts() -> None:
    calm = [(float(at), 14.0) for at in range(0, 60, 2)]
    burst = [(float(at), 140.0) for at in range(60, 66, 2)]
    quiet = [(float(at), 0.0) for at in range(66, 120, 2)]
    found = _after(calm + burst + quiet, ready=2)
    assert found[len(calm) - 1] == 2
    assert found[len(calm) + len(burst) - 1] == 20
    assert min(found[len(calm) + len(burst) :]) == 20


def test_after_the_stable_window_the_panic_is_over_and_half_go_at_most() -> None:
    burst = [(float(at), 140.0) for at in range(0, 6, 2)]
    quiet = [(float(at), 0.0) for at in range(6, 140, 2)]
    assert _after(burst + quiet, ready=8)[-1] == 4


def test_never_more_than_allowed() -> None:
    pods, _ = kpa_pods(1e9, 1, KpaState(), 0.0, KpaParams(max_pods=7))
    assert pods == 7
