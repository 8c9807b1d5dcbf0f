"""Pods of one kind learn from each other's heartbeats which of them compute slower."""

import random
from math import exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.domain.pod import AVERAGE, PodInfo, PodSpeed
from registry.domain.pod_state import PodState
from runtime.measurements import SpeedFit

MODELS_S = {"small@1": 0.004, "middle@1": 0.05, "large@1": 0.7}


class Pool:
    """Pods with the true factors on their times; each heartbeat reaches all others at once."""

    def __init__(self, factors: list[float], jitter: float = 0.0) -> None:
        self.factors = {f"pod-{number}": factor for number, factor in enumerate(factors)}
        self.pods = {name: PodState(PodInfo(name, f"{name}:80", "n")) for name in self.factors}
        self.fits = {name: SpeedFit() for name in self.factors}
        self._jitter, self._rng = jitter, random.Random(1)

    def serve(self, name: str, key: str, requests: int = 1) -> None:
        for _ in range(requests):
            seconds = MODELS_S.get(key, 0.05) * self.factors[name]
            self.fits[name].add(key, seconds * exp(self._rng.gauss(0.0, self._jitter)))

    def heartbeat(self, name: str) -> PodSpeed:
        speed = self.fits[name].compare(name, self.pods)
        self.pods[name].set_speed(speed)
        return speed

    def run(self, seconds: int, requests: int = 5) -> None:
        """All pods serve all models, and report once a second."""
        for _ in range(seconds):
            for name in self.pods:
                for key in MODELS_S:
                    self.serve(name, key, requests)
                self.heartbeat(name)

    @property
    def slowness(self) -> list[float]:
        return [pod.slowness for pod in self.pods.values()]


def test_the_pods_that_differ_from_the_median_learn_their_factors() -> None:
    pool = Pool([1.0, 1.0, 3.0, 0.5, 1.0])
    pool.run(10)
    assert pool.slowness == pytest.approx([1.0, 1.0, 3.0, 0.5, 1.0], rel=0.05)
    assert pool.slowness[0] == pool.slowness[1] == pool.slowness[4] == 1.0


@given(st.lists(st.floats(0.25, 4.0), min_size=2, max_size=5))
@settings(max_examples=30)
def test_learned_ratios_are_the_true_ones(factors: list[float]) -> None:
    pool = Pool(factors)
    pool.run(15)
    learned = pool.slowness
    for mine, true in zip(learned, factors, strict=True):
        assert mine / learned[0] == pytest.approx(true / factors[0], rel=0.16)
    assert 1.0 in learned, "the typical pod's times are those of the table"


def test_pods_that_share_models_with_one_other_only_are_compared_through_it() -> None:
    pool = Pool([1.0, 2.0, 4.0])
    for _ in range(20):
        for name, key in (
            ("pod-0", "small@1"), ("pod-1", "small@1"), ("pod-1", "large@1"), ("pod-2", "large@1"),
        ):  # fmt: skip
            pool.serve(name, key, 10)
        for name in pool.pods:
            pool.heartbeat(name)
    assert pool.slowness == pytest.approx([0.5, 1.0, 2.0], rel=0.1)


def test_a_pod_that_is_thousands_of_times_as_fast_has_a_factor_above_zero() -> None:
    pool = Pool([1.0, 1.0, 1e-5])
    pool.run(10)
    assert pool.slowness == [1.0, 1.0, pytest.approx(1e-5, rel=0.05)]


def test_noise_makes_no_factors() -> None:
    pool = Pool([1.0] * 4, jitter=0.3)
    for _ in range(60):
        pool.run(1)
        assert pool.slowness == [1.0] * 4


def test_noise_of_many_models_makes_hardly_any_factors() -> None:
    pool = Pool([1.0] * 8, jitter=0.6)
    rng = random.Random(2)
    slowness = []
    for _ in range(30):
        for name in pool.pods:
            for _ in range(5):
                pool.serve(name, f"equal-{rng.randrange(200)}@1")
            pool.heartbeat(name)
        slowness += pool.slowness
    assert slowness.count(1.0) >= 0.97 * len(slowness)


def test_factors_are_learned_under_noise() -> None:
    pool = Pool([1.0, 1.0, 2.0], jitter=0.2)
    pool.run(30)
    assert pool.slowness == pytest.approx([1.0, 1.0, 2.0], rel=0.12)


def test_a_pod_that_becomes_slow_is_followed_within_a_minute_and_back() -> None:
    pool = Pool([1.0, 1.0, 1.0])
    pool.run(60, requests=2)
    pool.factors["pod-1"] = 2.5
    pool.run(60, requests=2)
    assert pool.slowness == pytest.approx([1.0, 2.5, 1.0], rel=0.1)
    pool.factors["pod-1"] = 1.0
    pool.run(60, requests=2)
    assert pool.slowness == [1.0, 1.0, 1.0]


def test_pods_that_slow_down_together_stay_equal() -> None:
    pool = Pool([1.0, 1.0, 1.0])
    pool.run(60)
    pool.factors = dict.fromkeys(pool.factors, 3.0)
    pool.run(60)
    assert pool.slowness == [1.0, 1.0, 1.0]


def test_single_slow_inferences_change_nothing() -> None:
    pool = Pool([1.0, 1.0])
    for _ in range(10):
        pool.run(1)
        pool.fits["pod-1"].add("small@1", 90.0)
        pool.heartbeat("pod-1")
    assert pool.slowness == [1.0, 1.0]


@pytest.mark.parametrize("others", [0, 1], ids=["its-only-one", "then-another"])
@pytest.mark.parametrize("name", ["pod-0", "pod-1"])
def test_one_slow_inference_of_a_new_model_changes_nothing(name: str, others: int) -> None:
    pool = Pool([1.0, 1.0])
    for each in pool.pods:
        pool.serve(each, "small@1", 20)
        pool.serve(each, "large@1", others if each == name else 20)
    pool.fits[name].add("large@1", 30.0)
    for _ in range(3):
        for each in pool.pods:
            pool.serve(each, "small@1", 10)
            pool.heartbeat(each)
        assert pool.slowness == [1.0, 1.0]


def test_a_model_that_no_other_pod_runs_says_nothing() -> None:
    pool = Pool([1.0, 5.0])
    for _ in range(10):
        pool.serve("pod-0", "small@1", 10)
        pool.serve("pod-1", "large@1", 10)
        pool.heartbeat("pod-0")
        pool.heartbeat("pod-1")
    assert pool.slowness == [1.0, 1.0]


def test_what_others_measured_counts_after_the_model_has_moved() -> None:
    pool = Pool([1.0, 3.0])
    pool.serve("pod-0", "small@1", 20)
    pool.heartbeat("pod-0")
    pool.serve("pod-1", "small@1", 20)
    for _ in range(10):
        speed = pool.heartbeat("pod-1")
    assert speed.slowness == pytest.approx(3.0, rel=0.05)


def test_a_restarted_pod_learns_anew() -> None:
    pool = Pool([1.0, 1.0, 2.0])
    pool.run(10)
    pool.factors["pod-2"], pool.fits["pod-2"] = 1.0, SpeedFit()
    assert pool.heartbeat("pod-2").slowness == 1.0
    pool.run(10)
    assert pool.slowness == [1.0, 1.0, 1.0]


def test_pods_of_an_older_version_are_not_compared() -> None:
    pool = Pool([1.0, 2.0])
    pool.run(1)
    pool.pods["pod-0"].set_speed(AVERAGE)
    before = pool.slowness
    for _ in range(10):
        pool.heartbeat("pod-1")
    assert pool.slowness == before


def test_a_pod_without_a_copy_of_the_cluster_reports_its_times_alone() -> None:
    fit = SpeedFit()
    for _ in range(20):
        fit.add("small@1", 0.25)
    assert fit.compare("pod-0", {}) == PodSpeed(1.0, {"small@1": 0.25})


def test_a_report_is_repeated_until_times_have_changed() -> None:
    pool = Pool([1.0], jitter=0.01)
    pool.serve("pod-0", "small@1", 100)
    first = pool.heartbeat("pod-0")
    pool.serve("pod-0", "small@1", 100)
    assert pool.heartbeat("pod-0") == first
    pool.factors["pod-0"] = 2.0
    pool.serve("pod-0", "small@1", 256)
    assert pool.heartbeat("pod-0") != first


def test_in_a_large_pool_a_pod_compares_itself_less_often() -> None:
    pool = Pool([1.0] * 100)
    pool.serve("pod-0", "small@1", 99)
    assert not pool.heartbeat("pod-0").alone_s
    pool.serve("pod-0", "small@1")
    assert pool.heartbeat("pod-0").alone_s


def test_only_the_most_used_models_are_reported() -> None:
    fit = SpeedFit()
    for number in range(80):
        for key in (*[f"rare-{number}@1"] * 2, "hot@1"):
            fit.add(key, 0.1)
    reported = fit.compare("pod-0", {}).alone_s
    assert len(reported) == 32
    assert "hot@1" in reported
