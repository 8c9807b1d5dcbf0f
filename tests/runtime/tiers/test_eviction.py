"""Eviction policies, and what bringing a model back is expected to cost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.eviction import measure
from registry.domain.model import Tier
from runtime.tiers.eviction import POLICIES, Candidate, ReloadCosts, greedy_dual, lru

candidates = st.lists(
    st.tuples(
        st.integers(1, 100),
        st.integers(0, 50),
        st.integers(1, 20),
        st.floats(0.001, 10),
        st.floats(0, 3),
    ),
    max_size=8,
).map(
    lambda rows: [
        Candidate(f"m{number}", size, used, uses=uses, reload_s=reload_s, clock=clock)
        for number, (size, used, uses, reload_s, clock) in enumerate(rows)
    ]
)
policies = st.sampled_from(sorted(POLICIES))


def keys(*models: Candidate, needed: int, policy: str = "lru") -> tuple[str, ...] | None:
    victims = POLICIES[policy](models, needed, 0.0)
    return None if victims is None else victims.keys


def test_lru_evicts_the_least_recently_used() -> None:
    models = [Candidate("new", 10, 9), Candidate("old", 10, 1), Candidate("mid", 10, 5)]
    assert keys(*models, needed=15) == ("old", "mid")


def test_evicts_no_more_than_necessary() -> None:
    assert keys(Candidate("small", 10, 1), Candidate("large", 100, 2), needed=50) == ("large",)


def test_evicts_none_if_all_are_not_enough() -> None:
    assert keys(Candidate("a", 10, 1), needed=11) is None


@pytest.mark.parametrize(
    ("kept", "evicted"),
    [
        pytest.param({"uses": 5}, {"uses": 4}, id="used-more-often"),
        pytest.param({"reload_s": 2.0}, {"reload_s": 1.0}, id="slower-to-reload"),
        pytest.param({"clock": 0.5}, {"clock": 0.0}, id="used-after-evictions"),
        pytest.param({"memory_bytes": 10}, {"memory_bytes": 11}, id="smaller"),
        pytest.param({"last_used": 2}, {"last_used": 1}, id="more-recent-of-equals"),
    ],
)
def test_greedy_dual_keeps_the_higher_priority(
    kept: dict[str, float], evicted: dict[str, float]
) -> None:
    plain = {"memory_bytes": 10, "last_used": 1}
    models = [
        Candidate("kept", **(plain | kept)),  # type: ignore[arg-type]  # a table of fields
        Candidate("evicted", **(plain | evicted)),  # type: ignore[arg-type]
    ]
    assert keys(*models, needed=1, policy="greedy-dual") == ("evicted",)


def test_greedy_dual_ages_unused_models() -> None:
    victims = greedy_dual([Candidate("a", 10, 1, uses=3, reload_s=5.0)], 10, 0.25)
    assert victims is not None
    assert victims.clock == pytest.approx(3 * 5.0 / 10)
    later = greedy_dual([Candidate("b", 10, 1, reload_s=1.0)], 10, victims.clock)
    assert later is not None
    assert later.clock == victims.clock  # monotonic


def test_lru_has_no_clock() -> None:
    victims = lru([Candidate("a", 10, 1)], 10)
    assert victims is not None
    assert victims.clock == 0.0


@given(candidates, st.integers(-10, 500), policies)
def test_victims_are_enough_and_none_is_superfluous(
    models: list[Candidate], needed: int, policy: str
) -> None:
    victims = keys(*models, needed=needed, policy=policy)
    sizes = {model.key: model.memory_bytes for model in models}
    if victims is None:
        assert sum(sizes.values()) < needed
        return
    freed = sum(sizes[key] for key in victims)
    assert freed >= needed
    assert all(freed - sizes[key] < needed for key in victims)


@given(candidates, st.integers(1, 500), st.randoms(), policies)
def test_order_of_candidates_does_not_matter(
    models: list[Candidate], needed: int, rng: st.DrawFn, policy: str
) -> None:
    shuffled = list(models)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]  # a random.Random
    assert keys(*models, needed=needed, policy=policy) == keys(
        *shuffled, needed=needed, policy=policy
    )


def test_default_policy_has_the_fewest_loads_in_the_replay() -> None:
    loads = dict.fromkeys(POLICIES, 0)
    for replayed in measure(seed=0, repeats=5):
        if replayed.policy in POLICIES and replayed.access != "shifting zipf":
            loads[replayed.policy] += replayed.loads
    assert POLICIES[min(loads, key=lambda name: loads[name])] is greedy_dual


GB = 1_000_000_000


def test_a_models_own_last_load_counts_most() -> None:
    costs = ReloadCosts()
    costs.observe("a", Tier.DISK, GB, 4.0)
    costs.observe("a", Tier.DISK, GB, 3.0)
    assert costs.estimate_s("a", Tier.DISK, GB) == 3.0


def test_unmeasured_model_is_judged_by_size_and_the_tiers_rate() -> None:
    costs = ReloadCosts()
    before = costs.estimate_s("b", Tier.DISK, GB)
    assert costs.estimate_s("b", Tier.DISK, 2 * GB) > before
    costs.observe("a", Tier.DISK, GB, 10.0)
    assert costs.estimate_s("b", Tier.DISK, GB) > before
    assert costs.estimate_s("b", Tier.HOST, GB) < costs.estimate_s("b", Tier.REMOTE, GB)


def test_withdrawn_model_is_forgotten() -> None:
    costs = ReloadCosts()
    before = costs.estimate_s("a", Tier.HOST, GB)
    costs.observe("a", Tier.HOST, GB, GB / 10e9 + 0.02)
    costs.forget("a")
    assert abs(costs.estimate_s("a", Tier.HOST, GB) - before) < 1e-6


def test_the_start_of_an_engine_says_nothing_about_other_models() -> None:
    costs = ReloadCosts()
    before = costs.estimate_s("b", Tier.DISK, GB)
    costs.observe("engine", Tier.DISK, None, 40.0)
    assert costs.estimate_s("engine", Tier.DISK, GB) == 40.0
    assert costs.estimate_s("b", Tier.DISK, GB) == before
