"""Knative's rule: two windows, and no scale-down in panic."""

from research.experiments.elastic.kpa import KpaParams, KpaState, kpa_pods

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


def test_panics_at_twice_the_pods_and_does_not_scale_down_in_panic() -> None:
    calm = [(float(at), 14.0) for at in range(0, 60, 2)]
    burst = [(float(at), 140.0) for at in range(60, 66, 2)]
    quiet = [(float(at), 0.0) for at in range(66, 120, 2)]
    found = _after(calm + burst + quiet, ready=2)
    assert found[len(calm) - 1] == 2
    assert found[len(calm) + len(burst) - 1] == 20
    assert min(found[len(calm) + len(burst) :]) == 20


def test_scales_down_by_half_at_most_after_the_panic() -> None:
    burst = [(float(at), 140.0) for at in range(0, 6, 2)]
    quiet = [(float(at), 0.0) for at in range(6, 140, 2)]
    assert _after(burst + quiet, ready=8)[-1] == 4


def test_respects_max_pods() -> None:
    pods, _ = kpa_pods(1e9, 1, KpaState(), 0.0, KpaParams(max_pods=7))
    assert pods == 7
