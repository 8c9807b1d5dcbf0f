"""Groups of a pool's pods: disjoint, complete, stable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.plan.problem import WHOLE_POOL, PodGroup, members

NAMES = st.lists(st.text(min_size=1, max_size=12), unique=True, max_size=40)


@given(NAMES, st.integers(1, 9))
def test_each_pod_is_in_one_group(names: list[str], groups: int) -> None:
    every = [PodGroup(number, groups) for number in range(groups)]
    assert all(sum(group.holds(name) for group in every) == 1 for name in names)


@given(NAMES, st.text(min_size=1, max_size=12), st.integers(1, 9))
def test_a_pod_that_comes_moves_no_other(names: list[str], new: str, groups: int) -> None:
    for number in range(groups):
        group = PodGroup(number, groups)
        before = {name for name in names if group.holds(name)}
        after = {name for name in {*names, new} if group.holds(name)}
        assert after - before <= {new}
        assert before <= after


def test_the_whole_pool_is_one_group() -> None:
    assert members(["a", "b", "c"], WHOLE_POOL) == [0, 1, 2]


def test_groups_are_about_equal_in_size() -> None:
    names = [f"pool-7c9d-{number}" for number in range(1000)]
    sizes = [len(members(names, PodGroup(number, 8))) for number in range(8)]
    assert sum(sizes) == 1000
    assert min(sizes) > 90
    assert max(sizes) < 160


@pytest.mark.parametrize("groups", [2, 4, 8])
def test_a_group_without_a_pod_plans_over_all(groups: int) -> None:
    empty = next(
        group for number in range(groups) if not (group := PodGroup(number, groups)).holds("only")
    )
    assert members(["only"], empty) == [0]
