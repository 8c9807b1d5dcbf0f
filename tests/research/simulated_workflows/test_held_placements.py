"""The placement that was held longest, completed with the models that it lacks."""

from research.simulated_workflows.cluster import PlacedModels
from research.simulated_workflows.simulation import HeldPlacements

SIZES = {"a": 4.0, "b": 4.0, "c": 4.0}


def placed(*devices: str) -> PlacedModels:
    return tuple(frozenset(models) for models in devices)


def held(*spans: tuple[PlacedModels, float]) -> HeldPlacements:
    account, now_s = HeldPlacements(), 0.0
    for placement, seconds in spans:
        account.observe(placement, now_s)
        now_s += seconds
    account.observe(spans[-1][0], now_s)
    return account


def test_time_of_a_placement_adds_up_over_its_spans() -> None:
    account = held((placed("a", "b"), 3), (placed("b", "a"), 4), (placed("a", "b"), 2))
    assert account.fixed("ab", SIZES.__getitem__, [4.0, 4.0]) == placed("a", "b")


def test_a_missing_model_goes_where_it_was_held_longest() -> None:
    account = held((placed("a", "a"), 9), (placed("a", "b"), 2), (placed("b", "a"), 1))
    assert account.fixed("ab", SIZES.__getitem__, [8.0, 8.0]) == placed("a", "ab")


def test_a_missing_model_takes_the_memory_of_a_model_that_others_hold() -> None:
    account = held((placed("a", "a"), 9), (placed("a", "b"), 2))
    assert account.fixed("ab", SIZES.__getitem__, [4.0, 4.0]) == placed("a", "b")


def test_a_model_that_only_one_device_holds_is_not_removed() -> None:
    account = held((placed("a", "b"), 9), (placed("c", "b"), 2))
    assert account.fixed("abc", SIZES.__getitem__, [4.0, 4.0]) == placed("a", "b")


def test_without_a_span_the_latest_placement_counts() -> None:
    account = HeldPlacements()
    account.observe(placed("a", ""), 0.0)
    assert account.fixed("ab", SIZES.__getitem__, [4.0, 4.0]) == placed("a", "b")
