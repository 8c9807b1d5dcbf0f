from __future__ import annotations

from autoscaler.kubernetes.pools.pool_size import Owner, ScaleConflict


def _pause_s(conflict: ScaleConflict, pods: int, from_s: int) -> int:
    """Seconds for which scaling is paused."""
    return next(wait_s for wait_s in range(400) if conflict.check(pods, from_s + wait_s) is None)


def test_expected_numbers_are_no_conflict() -> None:
    conflict = ScaleConflict()
    assert conflict.check(3, 0) is None
    conflict.expect(2)
    assert conflict.check(2, 1) is None
    conflict.expect(None)  # whether it was set is unknown
    assert conflict.check(5, 2) is None


def test_a_foreign_change_pauses_scaling_with_a_reason() -> None:
    conflict = ScaleConflict()
    conflict.expect(2)
    found = conflict.check(7, 0)
    assert found is not None
    assert found.owner is Owner.UNKNOWN
    assert "from 2 to 7" in found.reason
    assert "minReplicas" in found.reason


def test_pauses_grow_with_each_foreign_change() -> None:
    conflict, now_s, pauses = ScaleConflict(), 0, []
    for _ in range(12):
        conflict.expect(2)
        pauses.append(_pause_s(conflict, 7, now_s))
        now_s += pauses[-1]
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
