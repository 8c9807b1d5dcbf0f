import random
import tracemalloc
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.domain.cluster import (
    LATE_VERSIONS,
    ChangeApplier,
    ClusterState,
    Snapshot,
    load_snapshot,
)
from registry.domain.model import Tier
from registry.domain.pod import AVERAGE, PodInfo, PodPhase, PodSpeed, Profile, ProfilePoint
from registry.domain.records import encode, encode_profile, encode_spec
from tests.registry.comparable_state import comparable
from tests.registry.redis.clients import KEY, SPEC

Change = list[Any]


def pod(name: str, epoch: int, *, slots_used: int = 0, phase: str = "ready") -> Change:
    info = encode(PodInfo(name, f"{name}:{epoch}", "n", slots=4))
    return ["pod", name, info, epoch, phase, "{}", 0, slots_used, 0]


def at(name: str, tier: str, loading: str = "-", key: str = KEY) -> Change:
    return ["at", key, name, f"{tier}|{loading}|1000|10"]


def speed(name: str, slowness: float) -> Change:
    return ["speed", name, encode(PodSpeed(slowness, {KEY: 0.25}))]


def model(spec: str | bool = encode_spec(SPEC)) -> Change:
    return ["model", str(SPEC.name), spec, False, False]


def profile(*rows: int) -> Change:
    points = tuple(ProfilePoint(count, 0.1) for count in rows)
    return ["profile", f"{SPEC.name}|cpu", encode_profile(Profile(KEY, "cpu", points))]


HISTORY: list[list[Change]] = [
    [["gone", "a"], pod("a", 1)],
    [model()],
    [at("a", "remote", "remote")],
    [at("a", "device")],
    [profile(1)],
    [["counts", "a", 1, 1], speed("a", 3.0)],
    [["counts", "a", 1, 2], ["steps", "a", {KEY: 1}]],
    [["steps", "b", {KEY: 1}], ["slots", "a", 9]],
    [["gone", "b"], pod("b", 2), ["counts", "b", 2, 0]],
    [speed("b", 2.0)],
    [at("b", "disk")],
    [["counts", "a", 2, 1]],
    [["gone", "a"], pod("a", 3)],
    [["counts", "a", 3, 3]],
    [speed("a", 1.5)],
    [["steps", "b", {KEY: 2}], ["steps", "a", {KEY: 3}]],
    [["gone", "b"]],
    [["steps", "a", {}]],
    [profile(1, 2), speed("a", 0.5)],
    [["steps", "a", {KEY: 1}]],
    [at("a", "host"), pod("a", 3, slots_used=1, phase="draining")],
    [model(False)],
]


def state_of(versions: list[tuple[int, list[Change]]]) -> ClusterState:
    state = ClusterState()
    applier = ChangeApplier(state)
    for version, changes in versions:
        applier.apply(version, changes)
    return state


IN_ORDER = list(enumerate(HISTORY, start=1))


def test_changes_in_order_give_the_expected_state() -> None:
    state = state_of(IN_ORDER)
    assert set(state.pods) == {"a"}
    assert (state.pods["a"].epoch, state.pods["a"].slots_used) == (3, 1)
    assert state.pods["a"].phase is PodPhase.DRAINING
    assert state.pods["a"].speed == PodSpeed(0.5, {KEY: 0.25})
    assert {name: place.tier for name, place in state.holders(KEY).items()} == {"a": Tier.HOST}
    assert state.models == {}
    assert state.version == len(HISTORY)


@given(st.integers(0, len(HISTORY) - 1), st.integers(1, len(HISTORY)))
def test_repeated_changes_have_no_effect(start: int, length: int) -> None:
    repeated = IN_ORDER[: start + length] + IN_ORDER[start : start + length]
    assert comparable(state_of(repeated)) == comparable(state_of(IN_ORDER[: start + length]))


@pytest.mark.parametrize("prefix", range(2, len(HISTORY) + 1))
def test_swapped_changes_give_the_same_state(prefix: int) -> None:
    swapped = [*IN_ORDER[: prefix - 2], IN_ORDER[prefix - 1], IN_ORDER[prefix - 2]]
    assert comparable(state_of(swapped)) == comparable(state_of(IN_ORDER[:prefix]))


@given(st.integers(0, 10**6))
def test_changes_in_any_order_give_the_same_state(seed: int) -> None:
    shuffled = [*IN_ORDER, *IN_ORDER[::3]]
    random.Random(seed).shuffle(shuffled)
    assert comparable(state_of(shuffled)) == comparable(state_of(IN_ORDER))


@pytest.mark.parametrize("cut", range(len(HISTORY) + 1))
def test_changes_older_than_the_snapshot_have_no_effect(cut: int) -> None:
    until_cut = state_of(IN_ORDER[:cut])
    state = state_of(IN_ORDER[:3])
    applier = load_snapshot(state, cut, snapshot_of(until_cut))
    assert comparable(state) == comparable(until_cut)
    for version, changes in IN_ORDER[:cut]:
        applier.apply(version, changes)
        assert comparable(state) == comparable(until_cut)
    for version, changes in IN_ORDER:
        applier.apply(version, changes)
    assert comparable(state) == comparable(state_of(IN_ORDER))


def snapshot_of(state: ClusterState) -> Snapshot:
    """The state as the script returns it."""
    pods = []
    for each in state.pods.values():
        residency: list[str] = []
        for key, holders in state.residency.items():
            if each.name in holders:
                place = holders[each.name]
                loading = place.loading_from or "-"
                residency += [key, f"{place.tier}|{loading}|1000|{place.size_bytes}"]
        info, phase = encode(each.info), each.phase.value
        pods.append(
            [each.name, info, each.epoch, phase, "{}", 0, each.slots_used, each.ongoing, residency]
        )
    models = [
        [str(name), [encode_spec(record.spec), False, False]]
        for name, record in state.models.items()
    ]
    profiles: list[str] = []
    for name, by_product in state.profiles.items():
        for product, found in by_product.items():
            profiles += [f"{name}|{product}" if product else str(name), encode_profile(found)]
    steps = [[name, dict(queued.counts)] for name, queued in state.queued_steps.items()]
    speeds = [
        [each.name, encode(each.speed)] for each in state.pods.values() if each.speed is not AVERAGE
    ]
    return Snapshot(pods=pods, models=models, profiles=profiles, steps=steps, speeds=speeds)


def test_an_older_snapshot_replaces_a_newer_copy() -> None:
    state = state_of(IN_ORDER)
    applier = load_snapshot(state, 2, snapshot_of(state_of(IN_ORDER[:2])))
    applier.apply(3, [at("a", "disk")])
    assert state.holders(KEY)["a"].tier is Tier.DISK


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(["weather", "fine"], id="unknown-kind"),
        pytest.param(["at", KEY, "a", "orbit|-|1|1"], id="unknown-tier"),
        pytest.param(["at", KEY, "a", "device"], id="other-form"),
        pytest.param(pod("z", 9, phase="dreaming"), id="unknown-phase"),
        pytest.param(["pod", "z"], id="too-few"),
        pytest.param(["speed", "a", "fast"], id="no-speed"),
        pytest.param(["model", "default/z", "{}", False, False], id="empty-record"),
        pytest.param(["model", "default/z", "no json", False, False], id="no-json"),
    ],
)
def test_unreadable_changes_are_skipped_and_the_rest_applied(change: Change) -> None:
    state = state_of([(1, [pod("a", 1)]), (2, [change, ["counts", "a", 3, 2]])])
    assert state.pods["a"].slots_used == 3
    assert "default/z" not in map(str, state.models)


def test_a_profile_of_an_older_version_is_kept_beside_those_by_product() -> None:
    older = orjson.dumps({"key": KEY, "device": "cuda:0", "points": []}).decode()
    state = state_of([(1, [["profile", str(SPEC.name), older]]), (2, [profile(1)])])
    assert [(each.product, each.source) for each in state.profiles_of(KEY)] == [
        ("cpu", "measured"),
        ("cuda:0", "measured"),
    ]
    assert state.profiles[SPEC.name][""].product == "cuda:0"


@pytest.mark.parametrize(
    "text",
    [
        *(f'{{"slowness": {value}}}' for value in ("0", "-1.5", "1e999", "NaN", '"slow"')),
        *(f'{{"alone_s": {value}}}' for value in ('{"m@1": 0.0}', '{"m@1": null}', "[0.1]")),
        *("[2.0]", ""),
    ],
)
def test_a_speed_that_no_pod_can_have_is_not_read(text: str) -> None:
    state = state_of([(1, [pod("a", 1)]), (2, [speed("a", 2.0)]), (3, [["speed", "a", text]])])
    assert state.pods["a"].slowness == 2.0
    assert state.pods["a"].speed == PodSpeed(2.0, {KEY: 0.25})


def test_slots_follow_the_pod() -> None:
    full = pod("a", 1, slots_used=4)
    state = state_of([(1, [full]), (2, [["slots", "a", 5]])])
    assert (state.pods["a"].slots, state.pods["a"].has_free_slot) == (5, True)


def test_pending_slots_are_not_free() -> None:
    state = state_of([(1, [pod("a", 1, slots_used=3)])])
    assert state.pods["a"].has_free_slot
    state.pods["a"].add_pending(slots=1)
    assert not state.pods["a"].has_free_slot
    assert state.pods["a"].slots_busy == 4


def test_a_change_of_a_pod_clears_is_suspect() -> None:
    state = state_of([(1, [pod("a", 1)])])
    state.pods["a"].set_suspect(is_suspect=True)
    assert not state.pods["a"].is_accepting
    ChangeApplier(state).apply(2, [pod("a", 1)])
    assert state.pods["a"].is_accepting


@pytest.mark.parametrize("after", [False, encode_spec(replace(SPEC, storage_uri="file:///new"))])
def test_sizes_of_withdrawn_generations_are_forgotten(after: str | bool) -> None:
    state = state_of([(1, [pod("a", 1), model(), at("a", "device")])])
    assert state.residency.device_bytes == {KEY: 10}
    ChangeApplier(state).apply(2, [model(after)])
    assert state.residency.device_bytes == {}


@pytest.mark.slow
def test_models_that_come_and_go_for_ever_take_no_memory() -> None:
    applier = ChangeApplier(ClusterState())

    def come_and_go(first: int, last: int) -> int:
        """Bytes that are allocated at the end."""
        for version in range(first, last, 2):
            key = f"default/m{version}@1"
            applier.apply(version, [at("a", "disk", key=key)])
            applier.apply(version + 1, [["at", key, "a", False]])
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = come_and_go(1, 3 * LATE_VERSIONS)
        after = come_and_go(3 * LATE_VERSIONS, 5 * LATE_VERSIONS)
    finally:
        tracemalloc.stop()
    assert after < before + 1_000_000  # 4 MB if each were remembered


@pytest.mark.slow
def test_a_late_change_has_no_effect_beside_many_others() -> None:
    state = ClusterState()
    applier = ChangeApplier(state)
    for version in range(1, LATE_VERSIONS):
        applier.apply(version, [at("a", "disk", key=f"default/m{version}@1")])
    late = LATE_VERSIONS // 2
    applier.apply(late + 1, [["at", f"default/m{late + 1}@1", "a", False]])
    applier.apply(late, [at("a", "device", key=f"default/m{late + 1}@1")])
    assert f"default/m{late + 1}@1" not in state.residency
