"""What loads at a pod cost other models, as the scheduling policies read it."""

import pytest

from registry.domain.cluster import ClusterState
from registry.domain.model import Tier
from registry.domain.pod import PodInfo
from registry.domain.pod_index import Residency
from registry.domain.pod_state import PodState
from workflows.plan.costs import DeviceQueue
from workflows.plan.pods import device_of, is_worth_loading

NOW_S = 1_000.0
WARM = Residency(Tier.DEVICE, None, 0.0, 100)
LOADING = Residency(Tier.DISK, Tier.DISK, NOW_S, 100)


@pytest.fixture
def state() -> ClusterState:
    """A pod with room for two models, which holds one, of three that have requests."""
    found = ClusterState()
    found.pods["pod"] = PodState(PodInfo("pod", "pod:1", "node", memory_bytes=200))
    for key in ("held", "other", "new"):
        found.residency.device_bytes[key] = 100
        for second in range(60):
            found.arrivals.record(key, NOW_S - 60 + second)
    found.residency.put("held", "pod", WARM)
    return found


def harm_s(state: ClusterState, key: str) -> float:
    device = device_of(state, state.pods["pod"], DeviceQueue((), 0.0), [key], NOW_S)
    return device.harm_s[key]


def test_a_load_costs_what_it_evicts(state: ClusterState) -> None:
    assert harm_s(state, "new") == 0.0
    state.residency.put("other", "pod", WARM)
    assert harm_s(state, "new") > 0.0


def test_a_load_in_progress_evicts_nothing_more(state: ClusterState) -> None:
    state.residency.put("new", "pod", LOADING)
    assert harm_s(state, "other") > 0.0
    assert harm_s(state, "new") == 0.0


def test_a_load_in_progress_is_not_withdrawn_for_what_it_has_evicted(state: ClusterState) -> None:
    def is_worth(probability: float) -> bool:
        return is_worth_loading(state, state.pods["pod"], "new", NOW_S, 3.0, probability)

    assert is_worth(0.05)  # there is room
    state.residency.put("other", "pod", WARM)
    assert not is_worth(0.05)
    state.residency.put("other", "pod", Residency(Tier.DISK, None, NOW_S, 100))
    state.residency.put("new", "pod", LOADING)
    assert is_worth(0.05)
