"""The fixed keep-alive."""

from typing import Any

import pytest

from autoscaler.loading_policies.reactive import KeepAlive, keep_alive
from autoscaler.policy import ActionReason, CopyUse, Demote
from registry.domain.demand import QueueStats
from registry.domain.model import Tier
from tests.autoscaler.views import NOW_S, model, pod, pool

RULE = keep_alive(KeepAlive(keep_s=100.0))
AT_P = {"p": Tier.DEVICE}


def _demoted(**values: Any) -> list[tuple[str, Tier]]:
    view = pool([pod("p"), pod("q")], [model("m", **values)])
    actions, _ = RULE.plan(view, RULE.start)
    assert all(isinstance(each, Demote) and each.reason is ActionReason.IDLE for each in actions)
    return [(each.pod, each.tier) for each in actions if isinstance(each, Demote)]


def test_an_idle_copy_is_demoted_to_disk() -> None:
    assert _demoted(at=AT_P, last_arrival_s=NOW_S - 101) == [("p", Tier.DISK)]


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"last_arrival_s": NOW_S - 99}, id="a recent request"),
        pytest.param({"since_s": NOW_S - 99}, id="just loaded"),
        pytest.param({"policy": {"pin": True}}, id="pinned"),
        pytest.param({"policy": {"min_copies": 1}}, id="the last of min-copies"),
        pytest.param({"policy": {"keep_alive_s": 1e9}}, id="its own keep-alive"),
        pytest.param({"uses": {"p": CopyUse(ongoing=1)}}, id="in use"),
        pytest.param({"uses": {"p": CopyUse(last_s=NOW_S - 99)}}, id="used just now"),
        pytest.param({"waiting": QueueStats(requests=1)}, id="queued requests"),
    ],
)
def test_a_copy_is_kept(values: dict[str, Any]) -> None:
    assert _demoted(at=AT_P, **{"last_arrival_s": NOW_S - 101, **values}) == []


def test_ignores_running_loads_and_lower_tiers() -> None:
    assert _demoted(at={"q": Tier.DISK}, loading={"p": Tier.REMOTE}) == []


def test_demotes_the_longest_idle_copies_beyond_min_copies() -> None:
    uses = {"p": CopyUse(last_s=NOW_S - 200), "q": CopyUse(last_s=NOW_S - 300)}
    values = {"at": {"p": Tier.DEVICE, "q": Tier.DEVICE}, "uses": uses}
    assert _demoted(**values, policy={"min_copies": 1}) == [("q", Tier.DISK)]
