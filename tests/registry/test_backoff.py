from __future__ import annotations

from registry.backoff import Backoff


def test_pauses_double_up_to_the_maximum() -> None:
    backoff = Backoff(initial_s=0.5, max_s=3)
    assert [backoff.pause_s(failures) for failures in range(1, 6)] == [0.5, 1, 2, 3, 3]
    assert backoff.pause_s(100_000) == 3
