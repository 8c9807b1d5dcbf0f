"""Choosing what leaves the device."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runtime.eviction import Candidate, choose_victims

candidates = st.lists(st.tuples(st.integers(1, 100), st.integers(0, 50)), max_size=8).map(
    lambda rows: [Candidate(f"m{n}", size, used) for n, (size, used) in enumerate(rows)]
)


def test_least_recently_used_goes_first() -> None:
    models = [Candidate("new", 10, 9), Candidate("old", 10, 1), Candidate("mid", 10, 5)]
    assert choose_victims(models, 15) == ("old", "mid")


def test_no_more_than_needed_goes() -> None:
    models = [Candidate("small", 10, 1), Candidate("large", 100, 2)]
    assert choose_victims(models, 50) == ("large",)


def test_nothing_goes_when_all_together_are_not_enough() -> None:
    assert choose_victims([Candidate("a", 10, 1)], 11) is None


@given(candidates, st.integers(-10, 300))
def test_victims_free_enough_and_none_is_superfluous(models: list[Candidate], needed: int) -> None:
    victims = choose_victims(models, needed)
    sizes = {model.key: model.memory_bytes for model in models}
    if victims is None:
        assert sum(sizes.values()) < needed
        return
    freed = sum(sizes[key] for key in victims)
    assert freed >= needed
    assert all(freed - sizes[key] < needed for key in victims)


@given(candidates, st.integers(1, 300), st.randoms())
def test_order_of_candidates_does_not_matter(
    models: list[Candidate], needed: int, rng: st.DrawFn
) -> None:
    shuffled = list(models)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]  # a random.Random
    assert choose_victims(models, needed) == choose_victims(shuffled, needed)
