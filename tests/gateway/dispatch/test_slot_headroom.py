"""Slots left to other tenants by one with many requests."""

from __future__ import annotations

from gateway.dispatch.slot_headroom import RECENT_S, RecentTenants
from registry.domain.cluster_changes import ChangeApplier
from tests.gateway.cluster_states import NOW_S, PodSketch, cluster, declare
from tests.gateway.virtual_placer import VirtualPlacer


def two_tenants(slots: int = 8) -> VirtualPlacer:
    """A pod that is warm for `loud/m` and `quiet/m`."""
    state = cluster(PodSketch("pod-a", slots=slots))
    for namespace in ("loud", "quiet"):
        spec = declare(state, namespace=namespace)
        since_ms = int(NOW_S * 1000)
        entry = ["at", spec.key, "pod-a", f"device|-|{since_ms}|100"]
        ChangeApplier(state).apply(state.version + 1, [entry])
    return VirtualPlacer(state)


def flood(virtual: VirtualPlacer) -> int:
    """Requests of the tenant `loud` that are placed of twenty."""
    before = len(virtual.placed)
    spec = next(
        each.serving for name, each in virtual.state.models.items() if name.namespace == "loud"
    )
    for _ in range(20):
        virtual.place(spec)
    return len(virtual.placed) - before


def test_a_tenant_alone_takes_all_slots() -> None:
    assert flood(two_tenants()) == 8


def test_a_tenant_with_many_requests_leaves_slots_to_one_that_sends_some() -> None:
    virtual = two_tenants()
    quiet = declare(virtual.state, namespace="quiet")
    virtual.place(quiet)
    virtual.end_request("pod-a")
    virtual.placed[0].end_work()
    assert flood(virtual) == 6
    assert not virtual.place(quiet).is_pending
    assert not virtual.place(quiet).is_pending


def test_slots_are_left_for_some_seconds_only() -> None:
    virtual = two_tenants()
    virtual.place(declare(virtual.state, namespace="quiet"))
    virtual.end_request("pod-a")
    virtual.placed[0].end_work()
    virtual.run_for(RECENT_S + 1.0)
    assert flood(virtual) == 8


def test_slots_are_left_for_some_seconds_only_though_the_clock_was_set_back() -> None:
    tenants = RecentTenants()
    tenants.record("quiet", NOW_S)
    tenants.record("loud", NOW_S - 3600.0)
    assert not tenants.has_other("loud", NOW_S - 3590.0)
    tenants.record("quiet", NOW_S - 3580.0)
    assert tenants.has_other("loud", NOW_S - 3580.0 + RECENT_S)


def test_pods_with_few_slots_keep_none_free() -> None:
    virtual = two_tenants(slots=3)
    virtual.place(declare(virtual.state, namespace="quiet"))
    virtual.end_request("pod-a")
    virtual.placed[0].end_work()
    assert flood(virtual) == 3


def test_a_tenant_is_no_other_to_itself() -> None:
    tenants = RecentTenants()
    tenants.record("a", 1.0)
    assert not tenants.has_other("a", 1.0)
    assert tenants.has_other("b", 1.0)
    tenants.record("b", 2.0)
    assert tenants.has_other("a", 2.0)
    assert not tenants.has_other("b", 1.0 + RECENT_S + 0.1)
