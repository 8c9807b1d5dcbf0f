"""How placed pods come and leave until they are those of the plan."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from autoscaler.placement.placed_pods import has_arrived, next_step
from autoscaler.placement.problem import AcceleratorView, BatchPoint, ModelProfile, Profiles
from registry.domain.records import START_TIMEOUT_S, PlacedPod, PlacedReplica, PlacementRecord

KIND = "gpu"
GPUS = [AcceleratorView(name, KIND) for name in ("g0", "g1", "g2")]
MEMORY_PCT = {"a": 30.0, "b": 40.0, "c": 60.0, "d": 20.0}


def _point(batch_size: int, memory_pct: float) -> BatchPoint:
    return BatchPoint(batch_size, 0.01, batch_size / 0.01, memory_pct, 10.0, 10.0, 10.0)


PROFILES = Profiles(
    tuple(
        ModelProfile(model, KIND, tuple(_point(size, memory) for size in (1, 4)))
        for model, memory in MEMORY_PCT.items()
    )
)


def replica(
    model: str, gpu: str, batch_size: int = 4, share_pct: float | None = None
) -> PlacedReplica:
    return PlacedReplica(model, gpu, batch_size, share_pct, 1.0)


def record(*target: PlacedReplica, running: tuple[PlacedReplica, ...] = ()) -> PlacementRecord:
    pods = tuple(PlacedPod(f"placed-{at}", each, 0.0) for at, each in enumerate(running))
    return PlacementRecord("usher", "test", 0.0, ("g0", "g1", "g2"), (), target, pods, len(pods))


def step(before: PlacementRecord, cold: dict[str, float], now_s: float = 0.0) -> PlacementRecord:
    return next_step(before, cold, GPUS, PROFILES, {}, now_s)


def models(found: PlacementRecord) -> list[tuple[str, str]]:
    return [(pod.replica.model, pod.replica.accelerator) for pod in found.pods]


def test_the_new_copy_is_warm_before_the_old_one_leaves() -> None:
    before = record(replica("a", "g1"), running=(replica("a", "g0"),))
    both = step(before, {})
    assert models(both) == [("a", "g0"), ("a", "g1")]
    assert step(both, {"placed-1": 0.0}) == both
    assert models(step(both, {})) == [("a", "g1")]


def test_one_move_per_accelerator_at_a_time() -> None:
    before = record(replica("a", "g0"), replica("b", "g0"), replica("a", "g1"))
    first = step(before, {})
    assert models(first) == [("a", "g0"), ("a", "g1")]
    assert step(first, {"placed-0": 0.0, "placed-1": 0.0}) == first
    assert models(step(first, {"placed-1": 0.0})) == [("a", "g0"), ("a", "g1"), ("b", "g0")]


def test_without_room_the_old_copy_leaves_first() -> None:
    before = record(replica("c", "g0"), running=(replica("b", "g0"), replica("d", "g0")))
    without = step(before, {})
    assert models(without) == [("d", "g0")]
    assert models(step(without, {})) == [("d", "g0"), ("c", "g0")]


def test_a_batch_cap_changes_without_a_new_pod_and_a_share_with_one() -> None:
    running = (replica("a", "g0", 1),)
    before = record(replica("a", "g0", 4), running=running)
    assert not has_arrived(before)
    [pod] = step(before, {}).pods
    assert (pod.name, pod.replica.batch_size) == ("placed-0", 4)
    with_share = step(record(replica("a", "g0", 1, 50.0), running=running), {})
    assert [pod.name for pod in with_share.pods] == ["placed-0", "placed-1"]


def test_a_pod_that_does_not_become_warm_ends_the_plan() -> None:
    kept = replica("b", "g0")
    before = record(kept, replica("a", "g1"), running=(kept,))
    started = step(before, {})
    waiting = step(started, {"placed-1": 0.0}, now_s=START_TIMEOUT_S)
    assert waiting == started
    after = step(started, {"placed-1": 0.0}, now_s=START_TIMEOUT_S + 1)
    assert models(after) == [("b", "g0")]
    assert has_arrived(after)
    assert "placed-1 (a)" in after.reason


def test_a_pod_of_an_accelerator_that_is_gone_is_dropped() -> None:
    before = record(running=(replica("a", "gone"),))
    assert step(before, {}).pods == ()


_REPLICAS = st.lists(
    st.builds(
        replica,
        st.sampled_from(sorted(MEMORY_PCT)),
        st.sampled_from([each.name for each in GPUS]),
        st.sampled_from([1, 4]),
        st.sampled_from([None, 50.0]),
    ),
    unique_by=lambda each: (each.model, each.accelerator),
    max_size=8,
)


def _fits(replicas: list[PlacedReplica]) -> bool:
    return all(
        sum(MEMORY_PCT[each.model] for each in replicas if each.accelerator == gpu.name) <= 100
        for gpu in GPUS
    )


@given(_REPLICAS.filter(_fits), _REPLICAS.filter(_fits))
def test_every_plan_is_reached_within_memory_by_single_moves(
    running: list[PlacedReplica], target: list[PlacedReplica]
) -> None:
    now = record(*target, running=tuple(running))
    for _ in range(2 * (len(running) + len(target)) + 2):
        after = step(now, {})
        for gpu in GPUS:
            here = [
                {pod.name for pod in each.pods if pod.replica.accelerator == gpu.name}
                for each in (now, after)
            ]
            assert len(here[0] ^ here[1]) <= 1
            used = sum(
                MEMORY_PCT[pod.replica.model]
                for pod in after.pods
                if pod.replica.accelerator == gpu.name
            )
            assert used <= 100
        now = after
    assert has_arrived(now)
    assert len(now.pods) == len(target)
    assert replace(now, reason="") == replace(step(now, {}), reason="")


@given(_REPLICAS.filter(_fits), _REPLICAS.filter(_fits))
def test_a_model_that_has_room_is_never_without_a_warm_copy(
    running: list[PlacedReplica], target: list[PlacedReplica]
) -> None:
    """Of accelerators with room for both; new pods are warm one step after their start."""
    union = {(each.model, each.accelerator, each.share_pct): each for each in (*running, *target)}
    if not _fits(list(union.values())):
        return
    now = record(*target, running=tuple(running))
    staying = {each.model for each in running} & {each.model for each in target}
    cold: dict[str, float] = {}
    for _ in range(3 * (len(running) + len(target)) + 2):
        after = step(now, cold)
        new = {pod.name for pod in after.pods} - {pod.name for pod in now.pods}
        cold = dict.fromkeys(new, 0.0)
        warm = {pod.replica.model for pod in after.pods if pod.name not in cold}
        assert staying <= warm
        now = after
