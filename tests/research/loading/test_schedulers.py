"""The schedulers of Blinowski et al. 2024: their loads and evictions."""

from collections.abc import Sequence
from typing import Any

import pytest

from autoscaler.loading_policies.reactive import Clockwork, clockwork
from autoscaler.policy import Action, ActionReason, CopyUse, Demote, Load, PoolView
from registry.domain.demand import QueueStats
from registry.domain.model import LoadFailure, Tier
from research.loading.baseline import Baseline, baseline
from research.loading.round_robin import (
    BY_DEADLINE,
    PER_MODEL,
    RENEWED,
    STARVED_FIRST,
    RoundRobin,
    RoundRobinState,
    round_robin,
)
from tests.autoscaler.views import NOW_S, model, pod, pool

BASELINE = baseline(Baseline(idle_s=10.0))
CLOCKWORK = clockwork(Clockwork(horizon_s=2.0))
WAITS = QueueStats(requests=1, oldest_s=NOW_S - 1)
FAILED = LoadFailure("m", "ModelLoadFailed", "no", 3, retry_at_s=NOW_S + 1)


def _summary(actions: Sequence[Action]) -> list[str]:
    """`model>pod` for a load, `model<pod` for an eviction."""
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
    return _summary(actions), after


def _clockwork(view: PoolView) -> list[str]:
    return _summary(CLOCKWORK.plan(view, None)[0])


def _turns(
    view: PoolView, refinements: int = BY_DEADLINE, state: RoundRobinState | None = None
) -> tuple[list[str], RoundRobinState]:
    rule = round_robin(RoundRobin(quantum_s=10.0, refinements=refinements))
    actions, after = rule.plan(view, state or rule.start)
    return _summary(actions), after


def _work(seconds: float) -> QueueStats:
    """Queued work in requests of 0.1 s."""
    return QueueStats(requests=round(10 * seconds), oldest_s=NOW_S - 1)


@pytest.mark.parametrize(
    "plan", [lambda view: _baseline(view)[0], _clockwork, lambda view: _turns(view)[0]]
)
@pytest.mark.parametrize(
    ("values", "of_pod"),
    [
        pytest.param({}, {}, id="no queue"),
        pytest.param({"waiting": _work(1), "failure": FAILED}, {}, id="load just failed"),
        pytest.param({"waiting": _work(1)}, {"inferring": 1}, id="the pod is busy"),
        pytest.param({"waiting": _work(1)}, {"is_accepting": False}, id="the pod is draining"),
        pytest.param({"waiting": _work(1), "size_bytes": 10_001}, {}, id="it fits no pod"),
        pytest.param({"waiting": _work(1), "loading": {"p": Tier.DISK}}, {}, id="being loaded"),
    ],
)
def test_starts_no_load(plan: Any, values: dict[str, Any], of_pod: dict[str, Any]) -> None:
    assert plan(pool([pod("p", **of_pod)], [model("m", **values)])) == []


def test_baseline_loads_on_machines_in_turn() -> None:
    pods = [pod("p"), pod("q"), pod("r")]
    models = [model("a", waiting=WAITS), model("b", waiting=WAITS)]
    assert _baseline(pool(pods, models), last="p") == (["a>q", "b>r"], "r")
    assert _baseline(pool(pods, models), last="r") == (["a>p", "b>q"], "q")


def test_baseline_serves_starved_requests_then_the_oldest() -> None:
    models = [
        model("a", waiting=QueueStats(1, 0, NOW_S - 2)),
        model("b", waiting=QueueStats(1, 0, NOW_S - 3)),
        model("c", waiting=QueueStats(1, 1, NOW_S - 1)),
    ]
    pods = [pod("p"), pod("q"), pod("r")]
    assert _baseline(pool(pods, models))[0] == ["c>p", "b>q", "a>r"]


def test_baseline_does_not_load_a_warm_model_again() -> None:
    view = pool(
        [pod("p"), pod("q", inferring=1)], [model("m", at={"q": Tier.DEVICE}, waiting=WAITS)]
    )
    assert _baseline(view)[0] == []


def _full(since_s: float, **use: Any) -> PoolView:
    """A machine with room for one model, which has held `old` since then."""
    old = model("old", at={"p": Tier.DEVICE}, since_s=since_s, uses={"p": CopyUse(**use)})
    one = pod("p", memory_bytes=1_000, used_bytes=1_000)
    return pool([one], [model("new", waiting=WAITS), old])


def test_baseline_skips_a_machine_that_has_not_served_since_its_load() -> None:
    assert _baseline(_full(NOW_S - 5))[0] == []
    assert _baseline(_full(NOW_S - 11))[0] == ["old<p", "new>p"]
    assert _baseline(_full(NOW_S - 5, last_s=NOW_S - 4))[0] == ["old<p", "new>p"]


def test_a_machine_has_served_only_if_its_own_copies_have() -> None:
    """Requests for the model were served by its copy elsewhere."""
    old = model(
        "old",
        at={"p": Tier.DEVICE, "q": Tier.DEVICE},
        since_s=NOW_S - 5,
        last_arrival_s=NOW_S - 1,
        uses={"p": CopyUse(), "q": CopyUse(ongoing=1, last_s=NOW_S - 1, served=3)},
    )
    machines = [pod("p", memory_bytes=1_000, used_bytes=1_000), pod("q", slots_busy=1)]
    assert _baseline(pool(machines, [model("new", waiting=WAITS), old]))[0] == []


def test_baseline_evicts_the_least_recently_used_models_needed() -> None:
    held = [
        model("a", at={"p": Tier.DEVICE}, uses={"p": CopyUse(last_s=NOW_S - 20)}),
        model("b", at={"p": Tier.DEVICE}, uses={"p": CopyUse(last_s=NOW_S - 30)}),
        model("c", at={"p": Tier.DEVICE}, policy={"pin": True}),
    ]
    view = pool(
        [pod("p", memory_bytes=3_000, used_bytes=3_000)], [*held, model("new", waiting=WAITS)]
    )
    assert _baseline(view)[0] == ["b<p", "new>p"]


@pytest.mark.parametrize(
    ("came_s", "expected"),
    [
        pytest.param(NOW_S - 2, [], id="later"),
        pytest.param(NOW_S - 4, ["b<p", "new>p"], id="first"),
    ],
)
def test_baseline_reserves_a_machine_for_earlier_requests(
    came_s: float, expected: list[str]
) -> None:
    """The idle machine holds `a`, whose request arrived 3 s ago."""
    held = [
        model(
            "a",
            at={"p": Tier.DEVICE},
            uses={"p": CopyUse(last_s=NOW_S - 20)},
            waiting=QueueStats(1, 0, NOW_S - 3),
        ),
        model("b", at={"p": Tier.DEVICE}, uses={"p": CopyUse(last_s=NOW_S - 30)}),
    ]
    new = model("new", waiting=QueueStats(1, 0, came_s))
    view = pool([pod("p", memory_bytes=2_000, used_bytes=2_000)], [*held, new])
    assert _baseline(view)[0] == expected


def test_baseline_reserves_one_machine_per_queued_request() -> None:
    both = {"p": Tier.DEVICE, "q": Tier.DEVICE}
    new = model("new", waiting=WAITS)
    served = {each: CopyUse(last_s=NOW_S - 1) for each in both}
    held = model("a", at=both, waiting=QueueStats(1, 0, NOW_S - 3), uses=served)
    assert _baseline(pool([pod("p"), pod("q")], [held, new]))[0] == ["new>q"]


@pytest.mark.parametrize(
    "plan", [lambda view: _baseline(view)[0], _clockwork, lambda view: _turns(view)[0]]
)
def test_free_memory_follows_from_models_not_from_reports(plan: Any) -> None:
    held = model("old", at={"p": Tier.DEVICE}, since_s=NOW_S, uses={"p": CopyUse(last_s=NOW_S + 1)})
    reporting_late = pod("p", memory_bytes=2_000, used_bytes=2_000)
    assert plan(pool([reporting_late], [held, model("new", waiting=WAITS)])) == ["new>p"]


def test_clockwork_loads_the_model_with_the_most_unserved_work() -> None:
    models = [model("a", waiting=_work(1)), model("b", waiting=_work(3))]
    assert _clockwork(pool([pod("p")], models)) == ["b>p"]


def test_clockwork_adds_no_copy_for_work_done_in_time() -> None:
    """Of 3 s of work a machine does 2 s; a second copy takes the rest."""
    pods = [pod("p", inferring=1), pod("q")]
    there = {"p": Tier.DEVICE}
    assert _clockwork(pool(pods, [model("m", at=there, waiting=_work(1))])) == []
    assert _clockwork(pool(pods, [model("m", at=there, waiting=_work(3))])) == ["m>q"]


@pytest.mark.parametrize("copies", range(1, 8))
@pytest.mark.parametrize("infer_s", [0.056, 0.07, 0.1, 0.37])
def test_clockwork_leaves_work_that_is_all_served(copies: int, infer_s: float) -> None:
    """Also where the parts of the copies add up to a little less than the whole."""
    names = [f"m{number}" for number in range(copies)]
    pods = [*(pod(name, inferring=1) for name in names), pod("idle", memory_bytes=1_000)]
    idle = model("a", at={"idle": Tier.DEVICE})
    for requests in range(1, 60):
        waiting = QueueStats(requests=requests, oldest_s=NOW_S - 1)
        there = dict.fromkeys(names, Tier.DEVICE)
        busy = model("b", at=there, waiting=waiting, infer_s=infer_s)
        part_s = requests * infer_s / copies
        for horizon_s in (part_s, 1.3 * part_s):
            rule = clockwork(Clockwork(horizon_s=horizon_s))
            assert rule.plan(pool(pods, [idle, busy]), None)[0] == (), (requests, horizon_s)


def test_clockwork_evicts_no_model_that_needs_its_copy_as_much() -> None:
    """3 requests of 0.1 s and one of 0.3 s: their sums differ in the last digit."""
    full = pod("p", memory_bytes=1_000)
    held = model("held", at={"p": Tier.DEVICE}, waiting=_work(0.1), infer_s=0.3)
    assert _clockwork(pool([full], [held, model("new", waiting=_work(0.3))])) == []


def test_clockwork_counts_the_work_of_other_models() -> None:
    """Two models with 2 s each on a machine that can do 2 s: half of each is not served."""
    pods = [pod("p", inferring=1), pod("q")]
    both = [model(name, at={"p": Tier.DEVICE}, waiting=_work(2)) for name in "ab"]
    assert _clockwork(pool(pods, both)) == ["b>q"]


def test_clockwork_evicts_the_lowest_priority_below_the_pending_one() -> None:
    full = pod("p", memory_bytes=2_000, used_bytes=2_000)
    held = [
        model("a", at={"p": Tier.DEVICE}, waiting=_work(1)),
        model("b", at={"p": Tier.DEVICE}, waiting=_work(0.5)),
    ]
    assert _clockwork(pool([full], [*held, model("new", waiting=_work(3))])) == ["b<p", "new>p"]
    assert _clockwork(pool([full], [*held, model("new", waiting=_work(0.4))])) == []


def test_clockwork_starts_one_load_per_machine() -> None:
    models = [model(name, waiting=_work(1)) for name in "abc"]
    assert len(_clockwork(pool([pod("p"), pod("q")], models))) == 2


def test_clockwork_respects_max_copies() -> None:
    pods = [pod("p", inferring=1), pod("q")]
    busy = model("m", at={"p": Tier.DEVICE}, waiting=_work(30), policy={"max_copies": 1})
    assert _clockwork(pool(pods, [busy])) == []


PLAIN = 0


def test_round_robin_loads_models_in_turn() -> None:
    models = [model(name, waiting=WAITS) for name in "abc"]
    expected, state = _turns(pool([pod("p")], models), PLAIN, RoundRobinState(last=models[0].key))
    assert expected == ["b>p"]
    assert _turns(pool([pod("p")], models), PLAIN, state)[0] == ["c>p"]
    assert _turns(pool([pod("p")], models), PLAIN, RoundRobinState(last=models[2].key))[0] == [
        "a>p"
    ]


def _turn_of_new(
    refinements: int, *, since_s: float, state: RoundRobinState | None = None, **use: Any
) -> Any:
    """`new` has a queue; the machine has held `old` since then."""
    old = model("old", at={"p": Tier.DEVICE}, since_s=since_s, uses={"p": CopyUse(**use)})
    one = pod("p", memory_bytes=1_000, used_bytes=1_000)
    return _turns(pool([one], [model("new", waiting=WAITS), old]), refinements, state)


def test_round_robin_keeps_a_model_for_its_quantum() -> None:
    assert _turn_of_new(PLAIN, since_s=NOW_S - 9)[0] == []
    assert _turn_of_new(PLAIN, since_s=NOW_S - 10)[0] == ["old<p", "new>p"]


def test_refinement_1_restarts_the_quantum_with_an_inference() -> None:
    since_s, last_s = NOW_S - 60, NOW_S - 9
    assert _turn_of_new(PLAIN, since_s=since_s, last_s=last_s)[0] == ["old<p", "new>p"]
    assert _turn_of_new(RENEWED, since_s=since_s, last_s=last_s)[0] == []


def test_refinement_2_orders_by_starved_requests_then_copies() -> None:
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
def test_round_robin_loads_a_model_that_is_warm_elsewhere(refinements: int) -> None:
    pods = [pod("p"), pod("q", inferring=1)]
    there = model("a", at={"q": Tier.DEVICE}, waiting=WAITS)
    assert _turns(pool(pods, [there]), refinements)[0] == ["a>p"]
    bounded = model("a", at={"q": Tier.DEVICE}, waiting=WAITS, policy={"max_copies": 1})
    assert _turns(pool(pods, [bounded]), refinements)[0] == []


def test_refinement_3_keeps_expensive_models_longer() -> None:
    """`old` takes 30 s to load and `new` 10 s: 1.5 times the mean, 15 s."""
    one = pod("p", memory_bytes=1_000, used_bytes=1_000)
    old = {"at": {"p": Tier.DEVICE}, "load_s": {Tier.REMOTE: 30.0}}
    new = model("new", waiting=WAITS)
    for ago_s, expected in ((14, []), (15, ["old<p", "new>p"])):
        view = pool([one], [new, model("old", since_s=NOW_S - ago_s, **old)])  # type: ignore[arg-type]
        assert _turns(view, PER_MODEL)[0] == expected
    view = pool([one], [new, model("old", since_s=NOW_S - 10, **old)])  # type: ignore[arg-type]
    assert _turns(view, STARVED_FIRST)[0] == ["old<p", "new>p"]


def test_refinement_3_keeps_at_least_half_a_quantum() -> None:
    one = pod("p", memory_bytes=1_000, used_bytes=1_000)
    for ago_s, expected in ((4, []), (5, ["old<p", "new>p"])):
        old = model(
            "old", at={"p": Tier.DEVICE}, load_s={Tier.REMOTE: 0.001}, since_s=NOW_S - ago_s
        )
        view = pool([one], [model("new", waiting=WAITS), old])
        assert _turns(view, PER_MODEL)[0] == expected


def test_refinement_3_adjusts_quanta_by_use() -> None:
    since_s, last_s = NOW_S - 100, NOW_S - 50
    _, after = _turn_of_new(PER_MODEL, since_s=since_s, last_s=last_s, served=600)
    assert list(after.factors.values()) == [1.25]
    _, after = _turn_of_new(PER_MODEL, since_s=since_s, last_s=last_s, served=1)
    assert list(after.factors.values()) == [0.8]
    longer = RoundRobinState(factors=dict.fromkeys(after.factors, 4.0))
    assert _turn_of_new(PER_MODEL, since_s=NOW_S - 39, state=longer)[0] == []


def test_refinement_4_orders_by_deadline() -> None:
    models = [
        model("a", waiting=WAITS, policy={"deadline_s": 9.0}),
        model("b", waiting=WAITS, policy={"deadline_s": 5.0}),
        model("c", waiting=WAITS),
    ]
    pods = [pod("p"), pod("q"), pod("r")]
    assert _turns(pool(pods, models), BY_DEADLINE)[0] == ["b>p", "a>q", "c>r"]
    assert _turns(pool(pods, models), PER_MODEL)[0] == ["a>p", "b>q", "c>r"]
