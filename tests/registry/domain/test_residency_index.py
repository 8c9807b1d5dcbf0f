"""The lists of warm and warming pods equal those of a full search."""

from hypothesis import given
from hypothesis import strategies as st

from registry.domain.cluster import ClusterState
from registry.domain.model import Tier
from registry.domain.pod import PodInfo, PodPhase
from registry.domain.pod_index import Residency
from registry.domain.pod_state import PodState

KEYS, PODS = ("a@0", "b@0"), ("p0", "p1", "p2")
RESIDENCIES = (
    Residency(Tier.DEVICE, None, 0.0, 1),
    Residency(Tier.REMOTE, Tier.REMOTE, 0.0, 1),
    Residency(Tier.DISK, None, 0.0, 1),
)
key, name = st.sampled_from(KEYS), st.sampled_from(PODS)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), key, name, st.sampled_from(RESIDENCIES)),
        st.tuples(st.just("drop"), key, name, st.none()),
        st.tuples(st.just("register"), key, name, st.none()),
        st.tuples(st.just("leave"), key, name, st.none()),
        st.tuples(st.just("suspect"), key, name, st.booleans()),
        st.tuples(st.just("phase"), key, name, st.sampled_from(PodPhase)),
    ),
    max_size=30,
)


def new_pod(name: str) -> PodState:
    return PodState(PodInfo(name, f"{name}:1", name, slots=1, memory_bytes=1))


@given(steps)
def test_serving_pods_match_a_full_search_after_every_change(
    steps: list[tuple[str, str, str, object]],
) -> None:
    state = ClusterState()
    for action, key, name, value in steps:
        known = state.pods.get(name)
        match action, value:
            case "put", Residency():
                state.residency.put(key, name, value)
            case "drop", _:
                state.residency.drop(key, name)
            case "register", _:
                state.pods[name] = new_pod(name)
            case "leave", _ if known is not None:
                del state.pods[name]
            case "suspect", bool() if known is not None:
                known.set_suspect(is_suspect=value)
            case "phase", PodPhase() if known is not None:
                known.set_phase(value)
        for each in KEYS:
            accepting = [
                (residency, pod)
                for at, residency in state.holders(each).items()
                if (pod := state.pods.get(at)) is not None and pod.is_accepting
            ]
            assert state.warm(each) == tuple(pod for at, pod in accepting if at.is_warm)
            assert state.warming(each) == tuple(pod for at, pod in accepting if at.is_warming)
        for at in PODS:
            assert state.residency.on_device(at) == {
                each: holders[at]
                for each in KEYS
                if at in (holders := state.holders(each))
                and (holders[at].is_warm or holders[at].is_warming)
            }


def test_a_model_without_holders_is_removed() -> None:
    state = ClusterState()
    state.residency.put("a@0", "p0", RESIDENCIES[0])
    state.residency.drop("a@0", "p0")
    assert state.warm("a@0") == state.warming("a@0") == ()
    assert state.residency == {}
