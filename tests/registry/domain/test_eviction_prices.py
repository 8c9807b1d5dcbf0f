"""Room, prices of evictions, and what makes them out of date."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.domain.cluster import ClusterState
from registry.domain.demand import ExpectedRates
from registry.domain.model import Tier
from registry.domain.pod import PodInfo
from registry.domain.pod_index import Residency
from registry.domain.pod_state import PodState
from registry.domain.prices import REFRESH_S

NOW_S = 1_000.0
WARM = Residency(Tier.DEVICE, None, 0.0, 100)
LOADING = Residency(Tier.DISK, Tier.DISK, 0.0, 100)
ON_DISK = Residency(Tier.DISK, None, 0.0, 100)


def pool(places: int = 2, pods: int = 2, **rates_per_s: float) -> ClusterState:
    """Pods with room for models of 100 bytes, each measured to load in 1 s; rates by model."""
    state = ClusterState()
    for n in range(pods):
        info = PodInfo(f"p{n}", f"p{n}:1", f"p{n}", slots=1, memory_bytes=100 * places)
        state.pods[info.name] = PodState(info)
    for key, rate in rates_per_s.items():
        state.residency.device_bytes[key] = 100
        state.pods["p0"].estimates.add(key, "load:disk", [1.0])
        for n in reversed(range(int(60 * rate))):
            state.arrivals.record(key, NOW_S - n / rate)
    return state


def price_s(state: ClusterState, pod: str, key: str, now_s: float = NOW_S) -> float:
    return state.prices_at(now_s).price_s(state.pods[pod], key)


def test_room_costs_nothing() -> None:
    state = pool(a=1.0, b=1.0)
    state.residency.put("a", "p0", WARM)
    assert price_s(state, "p0", "b") == 0.0
    assert state.eviction_prices.has_room(state.pods["p0"], "b")


def test_a_load_in_progress_takes_room() -> None:
    state = pool(a=1.0, b=1.0, c=1.0)
    state.residency.put("a", "p0", WARM)
    assert price_s(state, "p0", "c") == 0.0
    state.residency.put("b", "p0", LOADING)
    assert price_s(state, "p0", "c") > 0.0
    assert not state.eviction_prices.has_room(state.pods["p0"], "c")


def test_a_load_makes_each_load_on_its_link_longer_by_what_it_takes_alone() -> None:
    state = pool(places=4, a=0.0, b=0.0)
    for key in ("a", "b"):
        state.residency.put(key, "p0", LOADING)
    beside_two_s = 3 * 0.5
    delay_s = state.prices_at(NOW_S).delay_s(state.pods["p0"], beside_two_s)
    assert delay_s == pytest.approx(2 * 0.5)


def test_a_pod_whose_memory_is_taken_by_loads_is_blocked_until_one_is_over() -> None:
    state = pool(places=1, a=1.0, b=1.0)
    state.residency.put("a", "p0", LOADING)
    assert price_s(state, "p0", "b") == inf
    state.residency.put("a", "p0", WARM)
    assert 0.0 < price_s(state, "p0", "b") < inf


def test_the_cheapest_models_leave() -> None:
    state = pool(places=2, pods=2, hot=4.0, cold=0.1, new=1.0, a=1.0, b=1.0)
    for key in ("hot", "cold"):
        state.residency.put(key, "p0", WARM)
    for key in ("hot", "a"):
        state.residency.put(key, "p1", WARM)
    assert price_s(state, "p0", "new") < price_s(state, "p1", "new")


@pytest.mark.parametrize("infer_s", [0.1, 3.0], ids=["idle", "busy"])
def test_a_copy_elsewhere_lowers_the_price_as_soon_as_it_is_there(infer_s: float) -> None:
    state = pool(places=1, pods=2, a=1.0, b=1.0, c=1.0)
    for measure, seconds in (("infer", infer_s), ("preprocess", 0.0), ("postprocess", 0.0)):
        state.pods["p0"].estimates.add("a", measure, [seconds])
    state.residency.put("a", "p0", WARM)
    alone_s = price_s(state, "p0", "b")
    state.residency.put("a", "p1", WARM)
    busy = state.prices_at(NOW_S).rate_per_s("a") * infer_s
    assert price_s(state, "p0", "b") == pytest.approx(alone_s * min(1.0, busy))
    state.residency.put("a", "p1", ON_DISK)
    assert price_s(state, "p0", "b") == pytest.approx(alone_s)


def test_a_large_model_pays_for_all_that_leave() -> None:
    state = pool(places=2, a=1.0, b=1.0, c=1.0, large=1.0)
    for key in ("a", "b"):
        state.residency.put(key, "p0", WARM)
    one_s = price_s(state, "p0", "c")
    state.residency.device_bytes["large"] = 200
    assert price_s(state, "p0", "large") == pytest.approx(2 * one_s)


def test_a_model_larger_than_the_pod_is_not_blocked_for_ever() -> None:
    state = pool(places=1, a=1.0, large=1.0)
    state.residency.device_bytes["large"] = 10_000
    assert price_s(state, "p0", "large") == 0.0
    state.residency.put("a", "p0", WARM)
    assert price_s(state, "p0", "large") < inf


def test_rates_are_taken_once_a_second() -> None:
    state = pool(places=1, a=1.0, b=1.0, c=1.0)
    state.residency.put("a", "p0", WARM)
    before_s = price_s(state, "p0", "b")
    for n in range(600):
        state.arrivals.record("a", NOW_S + n / 10_000)
    assert price_s(state, "p0", "b", NOW_S + REFRESH_S / 2) == before_s
    assert price_s(state, "p0", "b", NOW_S + REFRESH_S) > 2 * before_s


def test_a_clock_that_is_set_back_does_not_keep_old_prices() -> None:
    state = pool(places=1, a=1.0, b=1.0, c=1.0)
    state.residency.put("a", "p0", WARM)
    before_s = price_s(state, "p0", "b")
    for n in range(600):
        state.arrivals.record("a", NOW_S - 500.0 + n / 10_000)
    assert price_s(state, "p0", "b", NOW_S - 500.0) > 2 * before_s


@pytest.mark.parametrize("wrong", [nan, inf, -inf, -3.0])
def test_published_rates_that_are_no_rates_change_no_price(wrong: float) -> None:
    state = pool(places=1, a=1.0, b=1.0, c=1.0)
    state.residency.put("a", "p0", WARM)
    before_s = price_s(state, "p0", "b")
    state.expected_rates = ExpectedRates({"a": wrong, "b": wrong}, NOW_S)
    assert price_s(state, "p0", "b", NOW_S + 0.001 - 1.0) == pytest.approx(before_s, rel=0.05)


@pytest.mark.parametrize(
    ("made_at_s", "is_used"),
    [
        pytest.param(NOW_S, True, id="new"),
        pytest.param(NOW_S - 3600.0, False, id="old"),
        pytest.param(NOW_S + 3600.0, False, id="of-a-clock-that-was-set-back"),
        pytest.param(nan, False, id="without-a-time"),
    ],
)
def test_a_gateway_without_arrivals_prices_by_published_rates_that_are_current(
    made_at_s: float, is_used: bool
) -> None:
    state = pool(places=1)
    for key in ("a", "b", "c"):
        state.residency.device_bytes[key] = 100
        state.pods["p0"].estimates.add(key, "load:disk", [1.0])
    state.residency.put("a", "p0", WARM)
    assert price_s(state, "p0", "b") == 0.0
    state.expected_rates = ExpectedRates({"a": 2.0, "b": 2.0, "c": 2.0}, made_at_s)
    assert (price_s(state, "p0", "b", NOW_S + REFRESH_S) > 0.1) is is_used


changes = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.sampled_from(["p0", "p1", "p2"]),
        st.sampled_from([WARM, LOADING, ON_DISK, None]),
        st.booleans(),
    ),
    max_size=20,
)


@given(changes)
def test_cached_prices_equal_new_ones(steps: list[tuple[str, str, Residency | None, bool]]) -> None:
    rates = {"a": 3.0, "b": 1.0, "c": 0.5, "d": 0.1}
    state = pool(2, 3, **rates)
    for key, pod, residency, is_asked in steps:
        if residency is None:
            state.residency.drop(key, pod)
        else:
            state.residency.put(key, pod, residency)
        if is_asked:
            price_s(state, pod, "e")
    fresh = pool(2, 3, **rates)
    for key, holders in state.residency.items():
        for pod, residency in holders.items():
            fresh.residency.put(key, pod, residency)
    for pod in state.pods:
        assert price_s(state, pod, "e") == price_s(fresh, pod, "e")
