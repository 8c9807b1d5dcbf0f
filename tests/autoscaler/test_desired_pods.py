"""The number of pods: up at once, down slowly, to zero and back, within bounds."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.desired_pods import (
    ScalingParams,
    ScalingState,
    contradictions,
    pool_problems,
    scale_pods,
)
from autoscaler.policy import Action, ActionReason, DrainPod, Limits, ModelView, PoolView, SetPods
from registry.domain.demand import QueueStats
from registry.domain.model import (
    LoadingPolicyName,
    ModelName,
    ModelPolicy,
    ModelSpec,
    Preload,
    Tier,
)
from registry.domain.pod import PodPhase
from registry.domain.pod_index import Residency
from tests.autoscaler.views import pod

PARAMS = ScalingParams(stable_s=60.0, idle_s=120.0)


def _model(name: str = "a", *, waiting: int = 0, last_s: float = -1e9, **policy: Any) -> ModelView:
    spec = ModelSpec(ModelName("default", name), "s3://models/a", policy=ModelPolicy(**policy))
    return ModelView(spec, 100, hold_s=1.0, waiting=QueueStats(waiting), last_arrival_s=last_s)


def _view(
    now_s: float, pods: int, *models: ModelView, low: int = 0, high: int | None = 10
) -> PoolView:
    names = [f"pod-{index}" for index in range(pods)]
    named = {name: pod(name, slots=1, memory_bytes=1000) for name in names}
    return PoolView(now_s, named, models or (_model(),), limits=Limits(low, high))


def _wanted(actions: tuple[Action, ...]) -> int | None:
    return next((each.pods for each in actions if isinstance(each, SetPods)), None)


def test_a_queue_at_zero_pods_wakes_one_pod() -> None:
    state = ScalingState(current=0)
    actions, state = scale_pods(_view(0, 0, _model(waiting=100)), state, PARAMS)
    assert _wanted(actions) == 1
    assert actions[0].reason is ActionReason.WAITING
    actions, state = scale_pods(_view(1, 0, _model(waiting=200)), state, PARAMS)
    assert actions == ()


@pytest.mark.parametrize(
    ("load_s", "pods"),
    [
        pytest.param(0.1, 1, id="little to load"),
        pytest.param(1.0, 5, id="ten seconds of loads within two"),
        pytest.param(60.0, 10, id="a pod each and no more"),
    ],
)
def test_queues_of_models_at_zero_pods_wake_pods_by_their_load_times(
    load_s: float, pods: int
) -> None:
    models = [
        replace(_model(f"m-{number}", waiting=50), load_s={Tier.REMOTE: load_s})
        for number in range(10)
    ]
    actions, state = scale_pods(_view(0, 0, *models, high=100), ScalingState(current=0), PARAMS)
    assert _wanted(actions) == pods
    assert scale_pods(_view(1, 0, *models, high=100), state, PARAMS)[0] == ()


def test_a_copy_on_a_draining_pod_does_not_count() -> None:
    view = _view(0, 1, _warm(_model(waiting=100)))
    view.pods["pod-0"].set_phase(PodPhase.DRAINING)
    assert _wanted(scale_pods(view, ScalingState(current=0), PARAMS)[0]) == 1


def _warm(
    model: ModelView, *, loading_from: Tier | None = None, since_s: float = -100.0
) -> ModelView:
    """The model on pod-0, or being loaded there."""
    tier = Tier.DEVICE if loading_from is None else loading_from
    return replace(model, holders={"pod-0": Residency(tier, loading_from, since_s, 100)})


def test_a_queue_at_busy_pods_scales_up_at_once() -> None:
    actions, _ = scale_pods(_view(0, 2, _warm(_model(waiting=8))), ScalingState(current=2), PARAMS)
    assert _wanted(actions) == 6  # 8 s of work within 2 s by one slot each


def test_a_queue_for_a_running_load_does_not_scale_up() -> None:
    loading = _warm(_model(waiting=100), loading_from=Tier.REMOTE)
    assert _wanted(scale_pods(_view(0, 1, loading), ScalingState(current=1), PARAMS)[0]) is None


def test_a_queue_just_after_a_load_does_not_scale_up() -> None:
    served = _warm(_model(waiting=8), since_s=-1.0)
    assert _wanted(scale_pods(_view(0, 1, served), ScalingState(current=1), PARAMS)[0]) is None


def test_one_queued_request_adds_at_most_one_pod() -> None:
    slow = replace(_warm(_model(waiting=1)), hold_s=1000.0)
    actions, _ = scale_pods(_view(0, 2, slow), ScalingState(current=2), PARAMS)
    assert _wanted(actions) == 3


def test_scales_down_after_the_stable_time_and_to_zero_after_the_idle_time() -> None:
    state = ScalingState(current=3)
    changes = []
    for now_s in range(300):
        actions, state = scale_pods(_view(now_s, 3, _model(last_s=0.0)), state, PARAMS)
        if (wanted := _wanted(actions)) is not None:
            changes.append((now_s, wanted))
    assert changes == [(60, 1), (179, 0)]  # one was wanted until 119


def test_recurring_load_does_not_oscillate() -> None:
    state = ScalingState(current=1)
    changes = 0
    for now_s in range(600):
        waiting = 8 if now_s % 40 == 0 else 0
        model = _warm(_model(waiting=waiting, last_s=float(now_s - now_s % 40)))
        pods = state.current or 0
        actions, state = scale_pods(_view(now_s, pods, model), state, PARAMS)
        changes += _wanted(actions) is not None
    assert changes <= 3
    assert (state.current or 0) > 1


def test_drains_the_emptiest_pods() -> None:
    view = _view(100, 3, _warm(_model(last_s=0.0)))
    view.pods["pod-1"].set_counts(1, 0)
    actions, _ = scale_pods(view, ScalingState(((0.0, 3), (50.0, 1)), 3), PARAMS)
    assert [each.pod for each in actions if isinstance(each, DrainPod)] == ["pod-2", "pod-0"]


@pytest.mark.parametrize(
    ("low", "high", "expected", "reason"),
    [
        pytest.param(2, 10, 2, ActionReason.FLOOR, id="floor"),
        pytest.param(0, 1, 1, ActionReason.CEILING, id="ceiling"),
    ],
)
def test_respects_bounds_with_the_reason(
    low: int, high: int, expected: int, reason: ActionReason
) -> None:
    waiting = 0 if reason is ActionReason.FLOOR else 50
    view = _view(0, 1, _warm(_model(waiting=waiting)), low=low, high=high)
    actions, _ = scale_pods(view, ScalingState(current=0), PARAMS)
    assert _wanted(actions) == expected
    assert actions[0].reason is reason


def test_a_new_pod_of_a_rollout_is_not_drained() -> None:
    """Two pods are registered while the Deployment of one replaces its pod."""
    view = _view(0, 2, _warm(_model()), low=1, high=1)
    actions, _ = scale_pods(view, ScalingState(existing=1), PARAMS)
    assert not any(isinstance(each, DrainPod) for each in actions)
    actions, _ = scale_pods(view, ScalingState(existing=2), PARAMS)
    assert sum(isinstance(each, DrainPod) for each in actions) == 1


def test_min_copies_need_pods() -> None:
    actions, _ = scale_pods(_view(0, 0, _model(min_copies=3)), ScalingState(current=0), PARAMS)
    assert _wanted(actions) == 3


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.integers(0, 50), st.integers(0, 8)), max_size=40)
)
def test_respects_bounds_whatever_the_clock_does(steps: list[tuple[float, int, int]]) -> None:
    state, now_s = ScalingState(), 1e7
    for jump_s, waiting, pods in steps:
        now_s = max(0.0, now_s + jump_s)
        view = _view(now_s, pods, _model(waiting=waiting), low=1, high=6)
        _, state = scale_pods(view, state, PARAMS)
        assert 1 <= (state.current or 0) <= 6
        assert len(state.wanted) <= 8


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        pytest.param(Limits(3, 2), "min-pods must be at most max-pods, was 3", id="crossed"),
        pytest.param(Limits(-1, 2), "min-pods must be at least 0, was -1", id="negative"),
        pytest.param(Limits(0, 0), "max-pods must be at least 1, was 0", id="none at most"),
    ],
)
def test_explains_invalid_bounds_of_a_pool(limits: Limits, text: str) -> None:
    assert any(text in problem for problem in pool_problems(limits))


def test_explains_contradictory_limits_of_models() -> None:
    large = replace(_model("large", preload=Preload.EAGER), size_bytes=5000)
    view = _view(0, 1, _model("fine"), _model("many", min_copies=11), large)
    found = contradictions(view)
    assert sorted(key.partition("@")[0] for key in found) == ["default/large", "default/many"]


def test_explains_a_model_that_needs_another_loading_policy() -> None:
    view = _view(0, 1, _model("fine"), _model("picky", loading=LoadingPolicyName.CLOCKWORK))
    [(key, text)] = contradictions(view, "predictive").items()
    assert key.startswith("default/picky@")
    assert "must be 'predictive', the loading policy of pool default, was 'clockwork'" in text
    assert contradictions(view, "clockwork") == {}


def _arriving(now_s: float, pods: int, requests: int, waiting: int = 0) -> PoolView:
    return _view(now_s, pods, replace(_model(waiting=waiting, last_s=now_s), arrived=requests))


def test_scales_to_recent_arrivals_whatever_the_forecast() -> None:
    actions, state = scale_pods(_arriving(0, 2, 10), ScalingState(current=2), PARAMS)
    assert _wanted(actions) == 5  # ten seconds of work in three, at 70 % of the slots
    assert actions[0].reason is ActionReason.ARRIVING
    actions, state = scale_pods(_arriving(0.5, 2, 0), state, PARAMS)
    assert actions == ()
    actions, _ = scale_pods(_arriving(1.0, 2, 10), state, PARAMS)
    assert _wanted(actions) == 10


def test_queues_need_pods_beside_those_for_arrivals() -> None:
    warm = {"pod-0": Residency(Tier.DEVICE, None, -100.0, 100)}
    model = replace(_model(waiting=8), arrived=6, holders=warm)
    actions, _ = scale_pods(_view(0, 2, model), ScalingState(current=2), PARAMS)
    assert _wanted(actions) == 7
    assert actions[0].reason is ActionReason.WAITING


def test_arrivals_at_zero_pods_wake_one_pod_only() -> None:
    actions, _ = scale_pods(_arriving(0, 0, 100, waiting=100), ScalingState(current=0), PARAMS)
    assert _wanted(actions) == 1


def test_one_long_request_needs_no_second_pod() -> None:
    model = replace(_model(), arrived=1, hold_s=60.0)
    actions, _ = scale_pods(_view(0, 1, model), ScalingState(current=1), PARAMS)
    assert actions == ()
