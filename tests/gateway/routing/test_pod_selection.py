"""The index of pods finds the same pods as a scan over all of them."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.pod_selection import free_pods, least_loaded, most_free_memory
from registry.domain.cluster import ClusterState
from registry.domain.pod import PodInfo, PodPhase
from registry.domain.pod_state import PodState

NAMES = [f"p{number}" for number in range(6)]
draws = st.floats(0, 1, exclude_max=True)
changes = st.tuples(
    st.sampled_from(NAMES),
    st.one_of(
        st.tuples(st.just("set_counts"), st.tuples(st.integers(0, 3), st.integers(0, 2))),
        st.tuples(st.just("add_pending"), st.tuples(st.integers(-1, 2), st.integers(-1, 1))),
        st.tuples(st.just("set_phase"), st.tuples(st.sampled_from(list(PodPhase)))),
        st.tuples(
            st.just("set_used_bytes"),
            st.tuples(st.sampled_from([{}, {"device": 50}, {"device": 100}])),
        ),
        st.just(("removed", ())),
        st.tuples(st.just("added"), st.tuples(st.integers(1, 3))),
    ),
)


@given(st.lists(st.tuples(changes, draws, st.sets(st.sampled_from(NAMES))), max_size=40))
def test_the_index_finds_the_pod_that_a_scan_finds_after_every_change(
    steps: list[tuple[tuple[str, tuple[str, tuple[Any, ...]]], float, set[str]]],
) -> None:
    state = ClusterState()
    for name in NAMES:
        state.pods[name] = pod(name, slots=2)
    for (name, (what, values)), draw, excluded in steps:
        if what == "added":
            state.pods[name] = pod(name, slots=values[0])
        elif name in state.pods and what == "removed":
            del state.pods[name]
        elif name in state.pods:
            getattr(state.pods[name], what)(*values)
        free = [each for each in free_pods(state) if each.name not in excluded]
        expected = (
            (least_loaded(free, draw), most_free_memory(free, draw)) if free else (None, None)
        )
        assert (
            state.pods.by_load.pick(draw, excluded),
            state.pods.by_free_memory.pick(draw, excluded),
        ) == expected


def pod(name: str, *, slots: int) -> PodState:
    return PodState(PodInfo(name, f"{name}:1", "n", slots=slots, memory_bytes=200))
