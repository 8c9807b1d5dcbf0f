"""The schedulers of Blinowski et al. 2024: which load they begin where, and what leaves for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autoscaler.loading.baseline import Baseline, baseline
from autoscaler.loading.clockwork import Clockwork, clockwork
from autoscaler.loading.round_robin import (
    BY_DEADLINE,
    PER_MODEL,
    RENEWED,
    STARVED_FIRST,
    RoundRobin,
    RoundRobinState,
    round_robin,
)
from autoscaler.planning.actions import ActionReason, Demote, Load
from autoscaler.planning.pool_view import CopyUse
from registry.domain.demand import QueueStats
from registry.domain.model import LoadFailure, Tier
from tests.autoscaler.pools import NOW_S, model, pod, pool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoscaler.planning.actions import Action
    from autoscaler.planning.pool_view import PoolView

BASELINE = baseline(Baseline(idle_s=10.0))
CLOCKWORK = clockwork(Clockwork(horizon_s=2.0))
WAITS = QueueStats(requests=1, oldest_s=NOW_S - 1)
FAILED = LoadFailure("m", "ModelLoadFailed", "no", 3, retry_at_s=NOW_S + 1)


def _told(actions: Sequence[Action]) -> list[str]:
    """`model>pod` for a load, `model<pod` for what leaves."""
    signs = {Load: ">", Demote: "<"}
    return [
        f"{each.key.split('/')[1].split('@')[0]}{signs[type(each)]}{each.pod}"
        for each in actions
        if isinstance(each, Load | Demote)
    ]


def _baseline(view: PoolView, last: str = "") -> tuple[list[str], str]:
    actions, after = BASELINE.plan(view, last)
    assert all(
        not isinstance(each, Load) or each.reason is ActionReason.WAITING for each in actions
    )
    return _told(actions), after


def _clockwork(view: PoolView) -> list[str]:
    return _told(CLOCKWORK.plan(view, None)[0])


def _turns(
    view: PoolView, refinements: int = BY_DEADLINE, state: RoundRobinState | None = None
) -> tuple[list[str], RoundRobinState]:
    rule = round_robin(RoundRobin(quantum_s=10.0, refinements=refinements))
    actions, after = rule.plan(view, state or rule.start)
    return _told(actions), after


def _work(seconds: float) -> QueueStats:
    """So much waiting work, in requests of 0.1 s."""
    return QueueStats(requests=round(10 * seconds), oldest_s=NOW_S - 1)


@pytest.mark.parametrize(
    "plan", [lambda view: _baseline(view)[0], _clockwork, lambda view: _turns(view)[0]]
)
@pytest.mark.parametrize(
    ("values", "of_pod"),
    [
        pytest.param({}, {}, id="nothing waits"),
        pytest.param({"waiting": _work(1), "failure": FAILED}, {}, id="its load just failed"),
        pytest.param({"waiting": _work(1)}, {"inferring": 1}, id="the pod is busy"),
        pytest.param({"waiting": _work(1)}, {"is_accepting": False}, id="the pod is leaving"),
        pytest.param({"waiting": _work(1), "size_bytes": 10_001}, {}, id="it fits no pod"),
        pytest.param({"waiting": _work(1), "loading": {"p": Tier.DISK}}, {}, id="it is coming"),
    ],
)
def test_no_load_is_begun(plan: Any, values: dict[str, Any], of_pod: dict[str, Any]) -> None:
    assert plan(pool([pod("p", **of_pod)], [model("m", **values)])) == []


# Baseline


def test_machines_take_turns() -> None:
    pods = [pod("p"), pod("q"), pod("r")]
    models = [model("a", waiting=WAITS), model("b", waiting=WAITS)]
    assert _baseline(pool(pods, models), last="p") == (["a>q", "b>r"], "r")
    assert _baseline(pool(pods, models), last="r") == (["a>p", "b>q"], "q")


def test_starved_requests_go_first_then_the_oldest() -> None:
    models = [
        model("a", waiting=QueueStats(1, 0, NOW_S - 2)),
        model("b", waiting=QueueStats(1, 0, NOW_S - 3)),
        model("c", waiting=QueueStats(1, 1, NOW_S - 1)),
    ]
    pods = [pod("p"), pod("q"), pod("r")]
    assert _baseline(pool(pods, models))[0] == ["c>p", "b>q", "a>r"]


def test_what_is_somewhere_is_not_loaded_again() -> None:
    view = pool(
        [pod("p"), pod("q", inferring=1)], [model("m", at={"q": Tier.DEVICE}, waiting=WAITS)]
    )
    assert _baseline(view)[0] == []


def _full(since_s: float, **use: Any) -> PoolView:
    """A machine of one place, which holds `old` since then."""
    old = model("old", at={"p": Tier.DEVICE}, since_s=since_s, uses={"p": CopyUse(**use)})
    one = pod("p", memory_bytes=1_000, used_bytes=1_000)
    return pool([one], [model("new", waiting=WAITS), old])


def test_a_machine_that_has_not_served_since_its_load_is_left_for_a_while() -> None:
    assert _baseline(_full(NOW_S - 5))[0] == []
    assert _baseline(_full(NOW_S - 11))[0] == ["old<p", "new>p"]
    assert _baseline(_full(NOW_S - 5, last_s=NOW_S - 4))[0] == ["old<p", "new>p"]


def test_only_as_many_leave_as_make_room_the_longest_unused_first() -> None:
    held = [
        model("a", at={"p": Tier.DEVICE}, uses={"p": CopyUse(last_s=NOW_S - 20)}),
        model("b", at={"p": Tier.DEVICE}, uses={"p": CopyUse(last_s=NOW_S - 30)}),
        model("c", at={"p": Tier.DEVICE}, policy={"pin": True}),
    ]
    view = pool([pod("p", memory_bytes=3_000, used_bytes=3_000)],
                [*held, model("new", waiting=WAITS)])  # fmt: skip
    assert _baseline(view)[0] == ["b<p", "new>p"]


@pytest.mark.parametrize(
    ("came_s", "told"),
    [
        pytest.param(NOW_S - 2, [], id="later"),
        pytest.param(NOW_S - 4, ["b<p", "new>p"], id="first"),
    ],
)
def test_a_machine_is_for_the_requests_that_came_first(came_s: float, told: list[str]) -> None:
    """It is idle and holds `a`, whose request came 3 s ago."""
    held = [
        model("a", at={"p": Tier.DEVICE}, uses={"p": CopyUse(last_s=NOW_S - 20)},
              waiting=QueueStats(1, 0, NOW_S - 3)),
        model("b", at={"p": Tier.DEVICE}, uses={"p": CopyUse(last_s=NOW_S - 30)}),
    ]  # fmt: skip
    new = model("new", waiting=QueueStats(1, 0, came_s))
    view = pool([pod("p", memory_bytes=2_000, used_bytes=2_000)], [*held, new])
    assert _baseline(view)[0] == told


def test_as_many_idle_machines_are_left_to_a_model_as_requests_of_it_wait() -> None:
    both = {"p": Tier.DEVICE, "q": Tier.DEVICE}
    new = model("new", waiting=WAITS)
    served = {each: CopyUse(last_s=NOW_S - 1) for each in both}
    held = model("a", at=both, waiting=QueueStats(1, 0, NOW_S - 3), uses=served)
    assert _baseline(pool([pod("p"), pod("q")], [held, new]))[0] == ["new>q"]


@pytest.mark.parametrize(
    "plan", [lambda view: _baseline(view)[0], _clockwork, lambda view: _turns(view)[0]]
)
def test_room_is_what_models_leave_not_what_the_pod_told_last(plan: Any) -> None:
    held = model("old", at={"p": Tier.DEVICE}, since_s=NOW_S, uses={"p": CopyUse(last_s=NOW_S + 1)})
    told_late = pod("p", memory_bytes=2_000, used_bytes=2_000)
    assert plan(pool([told_late], [held, model("new", waiting=WAITS)])) == ["new>p"]


# Clockwork


def test_the_model_with_most_unserved_work_is_loaded_first() -> None:
    models = [model("a", waiting=_work(1)), model("b", waiting=_work(3))]
    assert _clockwork(pool([pod("p")], models)) == ["b>p"]


def test_work_that_machines_can_do_in_time_asks_for_no_copy() -> None:
    """1 s at a machine that can do 2 s; with 3 s, 1 s is left, and a copy takes it."""
    pods = [pod("p", inferring=1), pod("q")]
    there = {"p": Tier.DEVICE}
    assert _clockwork(pool(pods, [model("m", at=there, waiting=_work(1))])) == []
    assert _clockwork(pool(pods, [model("m", at=there, waiting=_work(3))])) == ["m>q"]


def test_work_of_others_on_the_machine_counts() -> None:
    """Each has 2 s at a machine that can do 2 s: half of either is not served."""
    pods = [pod("p", inferring=1), pod("q")]
    both = [model(name, at={"p": Tier.DEVICE}, waiting=_work(2)) for name in "ab"]
    assert _clockwork(pool(pods, both)) == ["b>q"]


def test_what_is_missed_least_leaves_and_only_if_less_than_what_comes() -> None:
    full = pod("p", memory_bytes=2_000, used_bytes=2_000)
    held = [
        model("a", at={"p": Tier.DEVICE}, waiting=_work(1)),
        model("b", at={"p": Tier.DEVICE}, waiting=_work(0.5)),
    ]
    assert _clockwork(pool([full], [*held, model("new", waiting=_work(3))])) == ["b<p", "new>p"]
    assert _clockwork(pool([full], [*held, model("new", waiting=_work(0.4))])) == []


def test_one_load_per_machine_and_plan() -> None:
    models = [model(name, waiting=_work(1)) for name in "abc"]
    assert len(_clockwork(pool([pod("p"), pod("q")], models))) == 2


def test_copies_stay_within_bounds() -> None:
    pods = [pod("p", inferring=1), pod("q")]
    busy = model("m", at={"p": Tier.DEVICE}, waiting=_work(30), policy={"max_copies": 1})
    assert _clockwork(pool(pods, [busy])) == []


# Round robin

PLAIN = 0


def test_models_take_turns() -> None:
    models = [model(name, waiting=WAITS) for name in "abc"]
    told, state = _turns(pool([pod("p")], models), PLAIN, RoundRobinState(last=models[0].key))
    assert told == ["b>p"]
    assert _turns(pool([pod("p")], models), PLAIN, state)[0] == ["c>p"]
    assert _turns(pool([pod("p")], models), PLAIN, RoundRobinState(last=models[2].key))[0] == [
        "a>p"
    ]


def _turn_of_new(
    refinements: int, *, since_s: float, state: RoundRobinState | None = None, **use: Any
) -> Any:
    """`new` waits for the place of `old`, which came then."""
    old = model("old", at={"p": Tier.DEVICE}, since_s=since_s, uses={"p": CopyUse(**use)})
    one = pod("p", memory_bytes=1_000, used_bytes=1_000)
    return _turns(pool([one], [model("new", waiting=WAITS), old]), refinements, state)


def test_a_model_has_its_quantum() -> None:
    assert _turn_of_new(PLAIN, since_s=NOW_S - 9)[0] == []
    assert _turn_of_new(PLAIN, since_s=NOW_S - 10)[0] == ["old<p", "new>p"]


def test_an_inference_renews_the_quantum_from_the_first_refinement_on() -> None:
    since_s, last_s = NOW_S - 60, NOW_S - 9
    assert _turn_of_new(PLAIN, since_s=since_s, last_s=last_s)[0] == ["old<p", "new>p"]
    assert _turn_of_new(RENEWED, since_s=since_s, last_s=last_s)[0] == []


def test_most_starved_first_and_of_those_alike_the_one_with_fewest_copies() -> None:
    pods = [pod("p"), pod("q", inferring=1)]
    models = [
        model("a", at={"q": Tier.DEVICE}, waiting=QueueStats(5, 2, NOW_S - 9)),
        model("b", waiting=QueueStats(5, 2, NOW_S - 9)),
        model("c", waiting=QueueStats(5, 3, NOW_S - 9)),
        model("d", waiting=QueueStats(5, 0, NOW_S - 9)),
    ]
    assert _turns(pool(pods, models), STARVED_FIRST)[0] == ["c>p"]
    assert _turns(pool(pods, [models[0], models[1], models[3]]), STARVED_FIRST)[0] == ["b>p"]


@pytest.mark.parametrize("refinements", [PLAIN, RENEWED, STARVED_FIRST])
def test_a_model_has_its_turn_wherever_else_it_is(refinements: int) -> None:
    pods = [pod("p"), pod("q", inferring=1)]
    there = model("a", at={"q": Tier.DEVICE}, waiting=WAITS)
    assert _turns(pool(pods, [there]), refinements)[0] == ["a>p"]
    bounded = model("a", at={"q": Tier.DEVICE}, waiting=WAITS, policy={"max_copies": 1})
    assert _turns(pool(pods, [bounded]), refinements)[0] == []


def test_what_is_dear_to_load_stays_longer() -> None:
    """`old` takes 30 s to load and `new` 10 s: 1.5 times the mean, 15 s."""
    one = pod("p", memory_bytes=1_000, used_bytes=1_000)
    old = {"at": {"p": Tier.DEVICE}, "load_s": {Tier.REMOTE: 30.0}}
    new = model("new", waiting=WAITS)
    for ago_s, told in ((14, []), (15, ["old<p", "new>p"])):
        view = pool([one], [new, model("old", since_s=NOW_S - ago_s, **old)])  # type: ignore[arg-type]
        assert _turns(view, PER_MODEL)[0] == told
    view = pool([one], [new, model("old", since_s=NOW_S - 10, **old)])  # type: ignore[arg-type]
    assert _turns(view, STARVED_FIRST)[0] == ["old<p", "new>p"]


def test_what_loads_in_no_time_keeps_half_a_quantum() -> None:
    one = pod("p", memory_bytes=1_000, used_bytes=1_000)
    for ago_s, told in ((4, []), (5, ["old<p", "new>p"])):
        old = model(
            "old", at={"p": Tier.DEVICE}, load_s={Tier.REMOTE: 0.001}, since_s=NOW_S - ago_s
        )
        view = pool([one], [model("new", waiting=WAITS), old])
        assert _turns(view, PER_MODEL)[0] == told


def test_quanta_follow_how_well_they_were_used() -> None:
    since_s, last_s = NOW_S - 100, NOW_S - 50
    _, after = _turn_of_new(PER_MODEL, since_s=since_s, last_s=last_s, served=600)
    assert list(after.factors.values()) == [1.25]
    _, after = _turn_of_new(PER_MODEL, since_s=since_s, last_s=last_s, served=1)
    assert list(after.factors.values()) == [0.8]
    longer = RoundRobinState(factors=dict.fromkeys(after.factors, 4.0))
    assert _turn_of_new(PER_MODEL, since_s=NOW_S - 39, state=longer)[0] == []


def test_the_earliest_deadline_first() -> None:
    models = [
        model("a", waiting=WAITS, policy={"deadline_s": 9.0}),
        model("b", waiting=WAITS, policy={"deadline_s": 5.0}),
        model("c", waiting=WAITS),
    ]
    pods = [pod("p"), pod("q"), pod("r")]
    assert _turns(pool(pods, models), BY_DEADLINE)[0] == ["b>p", "a>q", "c>r"]
    assert _turns(pool(pods, models), PER_MODEL)[0] == ["a>p", "b>q", "c>r"]
