"""Windows for the policies from the cluster state: workers, swaps, batches, accuracies."""

from dataclasses import replace

import pytest

from registry.domain.application import AccuracyProfile, ApplicationSpec, SelectionPolicy
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelSpec
from registry.domain.pod import Profile, ProfilePoint
from tests.gateway.cluster_states import NOW_S, PodSketch, cluster, declare
from variants.live_window import (
    BatchLatency,
    batch_latency,
    live_window,
    variants_of,
    window_application,
)
from variants.planning.search import plan_window
from variants.planning.window import Window, WindowRequest

DIGITS = ApplicationSpec(ModelName("default", "digits"), ("no", "yes"), deadline_s=1.0)
VARIANT = ModelSpec(ModelName("default", "m"), "file:///m")
REQUEST = WindowRequest("r", str(DIGITS.name), NOW_S, 1.0)
MEASURED = {
    "infer": 0.1, "preprocess": 0.02, "postprocess": 0.01, "load:remote": 0.8,
    "infer|a100|1": 0.04, "preprocess|a100|1": 0.02, "postprocess|a100|1": 0.01,
}  # fmt: skip

PROFILE = Profile(
    "default/m@1", "a100", tuple(ProfilePoint(*each) for each in ((1, 0.02), (4, 0.026), (8, 0.03)))
)


def _state(*pods: PodSketch, profile_key: str | None = None) -> ClusterState:
    """Pods, and one variant with an accuracy of 0.7."""
    state = cluster(*pods, key=VARIANT.key, measured=MEASURED)
    key = declare(state, application="digits").key
    profile = AccuracyProfile(profile_key or key, DIGITS.classes, ((6, 2), (1, 1)))
    state.accuracies[VARIANT.name] = profile
    return state


def _window(state: ClusterState, application: ApplicationSpec = DIGITS) -> Window:
    planned = window_application(application, variants_of(application, state))
    return live_window([REQUEST], [planned], state, NOW_S)


def test_a_pods_latency_is_that_of_its_accelerator() -> None:
    window = _window(
        _state(PodSketch("fast", "warm", product="a100"), PodSketch("slow", "warm", product="l4"))
    )
    assert {each.name: each.latency_s["m"] for each in window.workers} == {
        "fast": pytest.approx(0.04),
        "slow": pytest.approx(0.07),
    }


def test_requests_take_the_time_of_batches_on_their_pods_product() -> None:
    state = _state(
        PodSketch("fast", "warm", product="a100"), PodSketch("slow", "warm", product="l4")
    )
    points = (ProfilePoint(1, 0.04), ProfilePoint(4, 0.07))
    state.profiles[VARIANT.name] = {"a100": Profile(VARIANT.key, "a100", points)}
    planned = window_application(DIGITS, variants_of(DIGITS, state))
    requests = [replace(REQUEST, id=f"r{at}") for at in range(4)]
    fast, slow = live_window(requests, [planned], state, NOW_S).workers
    assert (fast.setup_s["m"], fast.latency_s["m"]) == pytest.approx((0.02, 0.02))
    assert (slow.setup_s["m"], slow.latency_s["m"]) == pytest.approx((0.0, 0.07))
    [alone, *_] = _window(state).workers
    assert (alone.setup_s["m"], alone.latency_s["m"]) == pytest.approx((0.0, 0.04))


def test_a_profile_of_another_generation_says_nothing_of_batches() -> None:
    state = _state(PodSketch("fast", "warm", product="a100"))
    old = Profile("default/m@old", "a100", (ProfilePoint(1, 9.0),))
    state.profiles[VARIANT.name] = {"a100": old}
    [worker] = _window(state).workers
    assert worker.latency_s["m"] == pytest.approx(0.04)


def test_a_swap_costs_nothing_if_warm_else_the_rest_of_the_load() -> None:
    warm, cold, loading = _window(
        _state(
            PodSketch("a-warm", "warm"),
            PodSketch("b-cold"),
            PodSketch("c-loading", "loading:remote", loading_since_s=NOW_S - 0.5),
        )
    ).workers
    assert "m" not in warm.swap_s
    assert cold.swap_s["m"] == pytest.approx(0.8, abs=0.1)
    assert 0 < loading.swap_s["m"] < cold.swap_s["m"]


def test_a_variant_that_does_not_fit_a_pods_free_memory_is_not_planned_there() -> None:
    state = _state(PodSketch("a-warm", "warm"), PodSketch("b-full", used_bytes=950))
    full = _window(state).workers[1]
    assert (full.name, dict(full.latency_s)) == ("b-full", {})


def test_pods_without_a_free_slot_serve_no_request_unless_none_has_one() -> None:
    busy, idle = PodSketch("busy", "warm", busy=1), PodSketch("idle", "warm")
    assert [each.name for each in _window(_state(busy, idle)).workers] == ["idle"]
    assert [each.name for each in _window(_state(busy)).workers] == ["busy"]


def test_a_profile_of_another_generation_leaves_the_variant_out() -> None:
    variants = variants_of(DIGITS, _state(PodSketch("a", "warm"), profile_key="default/m@old"))
    assert variants.usable == ()
    [problem] = variants.problems
    assert "m: " in problem
    assert "another" in problem


def test_a_variant_that_is_never_right_is_planned_too() -> None:
    state = _state(PodSketch("a", "warm"))
    state.accuracies[VARIANT.name] = replace(
        state.accuracies[VARIANT.name], confusion=((0, 1), (1, 0))
    )
    for policy in SelectionPolicy:
        [assignment] = plan_window(policy, _window(state)).assignments
        assert (assignment.variant, assignment.accuracy) == ("m", 0.0)


def _latency(requests: int, *, max_rows: int | None = None, is_idle: bool = False) -> BatchLatency:
    return batch_latency(PROFILE, requests, max_rows=max_rows, is_idle=is_idle)


@pytest.mark.parametrize("is_idle", [True, False])
def test_a_single_request_takes_its_own_time(*, is_idle: bool) -> None:
    found = _latency(1, is_idle=is_idle)
    assert (found.setup_s, found.each_s, found.rest_s) == pytest.approx((0.0, 0.02, 0.0))


@pytest.mark.parametrize(("requests", "seconds"), [(4, 0.026), (6, 0.028), (8, 0.03)])
def test_a_busy_pod_takes_all_requests_as_a_batch(requests: int, seconds: float) -> None:
    found = _latency(requests)
    assert found.setup_s + requests * found.each_s == pytest.approx(seconds)
    assert found.setup_s + found.each_s == pytest.approx(0.02)
    assert found.rest_s == pytest.approx((requests - 1) * found.each_s)


def test_an_idle_pod_begins_with_a_batch_of_one() -> None:
    found = _latency(5, is_idle=True)
    assert found.setup_s + 5 * found.each_s == pytest.approx(0.02 + 0.026)


def test_batches_are_no_larger_than_the_annotation_or_the_profile_allows() -> None:
    assert _latency(8, max_rows=4) == _latency(4)
    assert _latency(64) == _latency(8)
    assert _latency(8, max_rows=1) == _latency(1)


def test_a_profile_whose_batches_take_longer_than_single_requests_is_not_trusted() -> None:
    slow = Profile("default/m@1", "", (ProfilePoint(1, 0.02), ProfilePoint(2, 0.1)))
    assert batch_latency(slow, 2, max_rows=2, is_idle=False).each_s == 0.02
