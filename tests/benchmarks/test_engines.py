"""The marks of vLLM through gateway and pod beside vLLM alone."""

from benchmarks.engines import ALONE, CLIENTS, THROUGH, Burst, marks


def bursts(*, tokens: int, first_s: float, gap_s: float) -> list[Burst]:
    alone = [Burst(ALONE, each, 1.0, 2.0, 1000, [0.02] * 5, [0.01] * 100) for each in CLIENTS]
    through = [
        Burst(THROUGH, each, 1.0, 2.0, tokens, [first_s] * 5, [gap_s] * 100) for each in CLIENTS
    ]
    return [*alone, *through]


def test_marks_hold_at_their_bounds_for_each_number_of_clients() -> None:
    found = marks(bursts(tokens=970, first_s=0.0249, gap_s=0.0109))
    assert [mark.is_reached for mark in found] == [True] * 3 * len(CLIENTS)


def test_a_mark_is_missed_beyond_its_bound() -> None:
    found = marks(bursts(tokens=960, first_s=0.0251, gap_s=0.0112))
    assert not any(mark.is_reached for mark in found)
