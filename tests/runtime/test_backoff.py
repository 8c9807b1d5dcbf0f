"""When a failed load is tried again."""

from runtime.errors import DiskFull, LoadFailed
from runtime.loading.load_queue import next_failure

FAULT = LoadFailed("broken")


def test_waits_double_up_to_a_minute() -> None:
    failure, waits = None, []
    for _ in range(9):
        failure = next_failure("k", FAULT, previous=failure, now_s=1000.0)
        waits.append(failure.retry_at_s - 1000.0)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert failure is not None
    assert failure.attempts == 9


def test_a_full_disk_is_asked_again_within_ten_seconds() -> None:
    failure, waits = None, []
    for _ in range(7):
        failure = next_failure("k", DiskFull("no room"), previous=failure, now_s=1000.0)
        waits.append(failure.retry_at_s - 1000.0)
    assert waits == [1, 2, 4, 8, 10, 10, 10]
    other = next_failure("k", FAULT, previous=failure, now_s=1000.0)
    assert other.retry_at_s == 1060.0


def test_another_generation_begins_anew() -> None:
    failure = next_failure("old", FAULT, previous=None, now_s=0.0)
    failure = next_failure("new", FAULT, previous=failure, now_s=0.0)
    assert failure.attempts == 1


def test_many_attempts_do_not_overflow() -> None:
    failure = None
    for _ in range(2000):
        failure = next_failure("k", FAULT, previous=failure, now_s=0.0)
    assert failure is not None
    assert failure.retry_at_s == 60
