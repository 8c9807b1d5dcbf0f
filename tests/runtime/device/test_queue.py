"""The device's queue: jobs that cannot end before their deadline do not run."""

import pytest

from registry.domain.estimates import MAX_AGE_S
from registry.domain.pod import Profile, ProfilePoint
from runtime.device.batch_times import BatchTimes
from runtime.device.queue import DeviceModel, DeviceQueue, Queued, QueuedRows

NOW_S = 100.0
MODEL = DeviceModel("default/m@0", "m")


def queue_of(*lefts_s: float | None, infer_s: float | None = 0.5) -> DeviceQueue[Queued]:
    """Jobs with these times left to their deadlines."""
    times = BatchTimes()
    if infer_s is not None:
        times.use_profile(Profile(MODEL.key, "cpu", (ProfilePoint(1, infer_s),)))
    queue: DeviceQueue[Queued] = DeviceQueue(times)
    for number, left_s in enumerate(lefts_s):
        due_s = NOW_S + (60.0 if left_s is None else left_s)
        deadline_s = None if left_s is None else due_s
        queue.add(Queued(MODEL, QueuedRows(number, due_s, NOW_S, deadline_s)))
    return queue


@pytest.mark.parametrize(
    ("left_s", "infer_s", "is_expired"),
    [
        pytest.param(-0.1, 0.5, True, id="deadline-passed"),
        pytest.param(0.4, 0.5, True, id="shorter-than-an-inference"),
        pytest.param(0.6, 0.5, False, id="longer-than-an-inference"),
        pytest.param(0.4, None, False, id="unmeasured"),
        pytest.param(None, 0.5, False, id="without-deadline"),
    ],
)
def test_a_job_that_cannot_end_in_time_is_expired(
    left_s: float | None, infer_s: float | None, is_expired: bool
) -> None:
    queue = queue_of(None, left_s, infer_s=infer_s)
    queue.probes.spend(MODEL.key, NOW_S, 60.0)
    assert len(queue.take_expired(NOW_S)) == is_expired
    assert len(queue) == 2 - is_expired


def test_a_device_without_other_work_tries_what_is_expected_to_be_late() -> None:
    queue = queue_of(0.4)
    assert not queue.take_expired(NOW_S)
    assert len(queue.take_expired(NOW_S + 0.4)) == 1


def test_one_that_is_expected_to_be_late_runs_as_a_probe_until_its_deadline() -> None:
    queue = queue_of(None, *[0.4] * 16)
    assert len(queue.take_expired(NOW_S)) == 15
    assert not queue.take_expired(NOW_S + 0.3)
    assert len(queue.take_expired(NOW_S + 0.4)) == 1


def test_jobs_are_judged_by_the_batch_that_they_would_be_in() -> None:
    times = BatchTimes()
    times.use_profile(Profile(MODEL.key, "cpu", (ProfilePoint(1, 0.1), ProfilePoint(8, 0.5))))
    queue: DeviceQueue[Queued] = DeviceQueue(times)
    for number in range(8):
        queue.add(Queued(MODEL, QueuedRows(number, NOW_S + 0.3, NOW_S, NOW_S + 0.3)))
    assert len(queue.take_expired(NOW_S)) == 7  # the eighth is a probe
    queue = DeviceQueue(times)
    queue.add(Queued(MODEL, QueuedRows(0, NOW_S + 0.3, NOW_S, NOW_S + 0.3)))
    queue.add(Queued(DeviceModel("b/m@0", "m"), QueuedRows(1, NOW_S + 60, NOW_S)))
    assert not queue.take_expired(NOW_S)


def test_fast_inferences_end_what_slow_ones_have_begun() -> None:
    """Large requests do not shut small ones of the same model out for good."""
    times = BatchTimes()
    for seconds in (6.0,) * 24:
        times.observe(MODEL.key, 1, seconds, NOW_S)
    assert times.usual_s(MODEL.key, 1, NOW_S) == 6.0
    for seconds in (0.006,) * 9:
        times.observe(MODEL.key, 1, seconds, NOW_S)
    assert times.usual_s(MODEL.key, 1, NOW_S) == 0.006


def test_batches_of_many_rows_do_not_refuse_few_rows() -> None:
    times = BatchTimes()
    for _ in range(3):
        times.observe(MODEL.key, 64, 6.4, NOW_S)
    queue: DeviceQueue[Queued] = DeviceQueue(times)
    for number in range(2):
        queue.add(Queued(MODEL, QueuedRows(number, NOW_S + 0.5, NOW_S, NOW_S + 0.5)))
    assert not queue.take_expired(NOW_S)
    for number in range(2, 10):
        queue.add(Queued(MODEL, QueuedRows(number, NOW_S + 0.5, NOW_S, NOW_S + 0.5)))
    assert queue.take_expired(NOW_S)  # eight of them take 0.8 s


def test_old_batches_refuse_nobody() -> None:
    times = BatchTimes()
    for _ in range(3):
        times.observe(MODEL.key, 1, 6.0, NOW_S)
    assert times.usual_s(MODEL.key, 1, NOW_S + MAX_AGE_S) == 6.0
    assert times.usual_s(MODEL.key, 1, NOW_S + MAX_AGE_S + 1) == 0.0


def test_a_tenant_with_many_jobs_runs_one_batch_before_the_next_tenant() -> None:
    queue = queue_of()
    loud, quiet = (DeviceModel(f"{tenant}/m@0", "m") for tenant in ("loud", "quiet"))
    for number in range(20):
        queue.add(Queued(loud, QueuedRows(number, NOW_S + number, NOW_S, batch_key="k")))
    served = [queue.take_next(NOW_S)[0][0].model]
    queue.add(Queued(quiet, QueuedRows(100, NOW_S + 60, NOW_S, batch_key="k")))
    served += [queue.take_next(NOW_S)[0][0].model for _ in range(2)]
    assert served == [loud, quiet, loud]


def test_within_a_tenant_the_earliest_deadline_is_first() -> None:
    queue = queue_of()
    late, soon = (DeviceModel(f"a/{name}@0", name) for name in ("late", "soon"))
    queue.add(Queued(late, QueuedRows(0, NOW_S + 9, NOW_S)))
    queue.add(Queued(soon, QueuedRows(1, NOW_S + 1, NOW_S)))
    assert queue.take_next(NOW_S)[0][0].model is soon
