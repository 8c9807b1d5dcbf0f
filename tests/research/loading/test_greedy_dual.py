"""FaasCache's order of evictions."""

from collections.abc import Sequence

from autoscaler.policy import Action, ActionReason, CopyUse, Demote, ModelView
from registry.domain.model import Tier
from research.loading.greedy_dual import GreedyDual, GreedyDualState, greedy_dual
from tests.autoscaler.views import model, pod, pool

TWO = greedy_dual(GreedyDual(idle_bytes=2_000))
AT_P = {"p": Tier.DEVICE}


def _step(
    models: Sequence[ModelView], state: GreedyDualState | None = None
) -> tuple[list[str], GreedyDualState]:
    actions, after = TWO.plan(pool([pod("p")], models), state or TWO.start)
    return [_name(each) for each in actions], after


def _name(action: Action) -> str:
    assert isinstance(action, Demote)
    assert action.reason is ActionReason.ROOM
    return action.key.split("/")[1].split("@")[0]


def test_evicts_nothing_while_there_is_room() -> None:
    assert _step([model("a", at=AT_P), model("b", at=AT_P)])[0] == []


def test_evicts_the_least_frequent_model() -> None:
    models = [model("a", at=AT_P, arrived=2), model("b", at=AT_P), model("c", at=AT_P, arrived=3)]
    assert _step(models)[0] == ["b"]


def test_evicts_cheap_and_large_models_first() -> None:
    dear = {Tier.DISK: 5.0, Tier.REMOTE: 9.0}
    models = [model("a", at=AT_P, load_s=dear), model("b", at=AT_P), model("c", at=AT_P)]
    assert _step(models)[0] == ["b"]
    models = [model("a", at=AT_P), model("b", at=AT_P), model("c", at=AT_P, size_bytes=1_500)]
    assert _step(models)[0] == ["c"]


def test_frequencies_add_up_and_age_with_the_clock() -> None:
    """`a` had two requests long ago; after three evictions one new request outweighs them."""
    old = model("a", at=AT_P, arrived=2)
    evicted, state = _step([old, model("b", at=AT_P)])
    for newcomer in "cde":
        evicted, state = _step(
            [model("a", at=AT_P), model("b", at=AT_P), model(newcomer, at=AT_P)], state
        )
    assert evicted != ["e"]
    assert state.clock > 0
    assert _step([model("a", at=AT_P), model("x", at=AT_P), model("y", at=AT_P)], state)[0] == ["a"]


def test_an_evicted_model_loses_its_frequency() -> None:
    _, state = _step([model("a", at=AT_P, arrived=9)])
    _, state = _step([model("a", arrived=0)], state)
    assert state.frequencies == {}


def test_skips_models_in_use() -> None:
    busy = model("a", at=AT_P, uses={"p": CopyUse(ongoing=1)})
    models = [busy, model("b", at=AT_P, arrived=5), model("c", at=AT_P, arrived=9)]
    assert _step(models)[0] == ["b"]


def test_the_default_limit_is_a_share_of_the_device() -> None:
    rule = greedy_dual(GreedyDual(memory_share=0.1))
    view = pool([pod("p", memory_bytes=10_000)], [model("a", at=AT_P), model("b", at=AT_P)])
    actions, _ = rule.plan(view, rule.start)
    assert [_name(each) for each in actions] == ["a"]
