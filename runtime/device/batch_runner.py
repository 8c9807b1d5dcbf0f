"""Runs one batch on the device: its results, its times, and its errors, job by job."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from runtime.device.device_errors import (
    is_device_error,
    is_device_lost,
    is_out_of_memory,
    release_frames,
)
from runtime.device.queue import InferenceResult, Job, resolve
from runtime.errors import InferenceFailed
from runtime.metrics import BATCH_SIZE, BATCHES, QUEUE_SECONDS
from runtime.threads import as_exception

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runtime.device.batch_times import BatchTimes
    from runtime.device.hang_watch import HangWatch, RunningBatch

logger = logging.getLogger(__name__)


class BatchRunner:
    """Called in the device's thread. `on_lost` gets the error when the device fails for good."""

    def __init__(
        self,
        times: BatchTimes,
        watch: HangWatch,
        timeout_s: float,
        on_lost: Callable[[Exception], None],
        check_device: Callable[[], None],
    ) -> None:
        self.is_lost = False
        """Set by the worker once the device has failed for good."""
        self._times = times
        self._watch = watch
        self._timeout_s = timeout_s
        self._on_lost = on_lost
        self._check_device = check_device

    def run(self, run: RunningBatch) -> None:
        """Run the batch; if it fails, run each job alone, so that only the faulty ones fail."""
        jobs, model = run.jobs, run.jobs[0].model
        outcomes = self._infer(run, jobs)
        can_split = len(jobs) > 1 and not run.is_abandoned and not self.is_lost
        if isinstance(outcomes, Exception) and can_split:
            extra = {"key": model.key, "error": outcomes}
            logger.info("batch failed, its requests run one by one", extra=extra)
            BATCHES.labels(model=model.name, outcome="split").inc()
            for job in jobs:
                if not run.is_abandoned:
                    _finish(run, [job], self._infer(run, [job]))  # a lost device fails the rest
        else:
            _finish(run, jobs, outcomes)

    def _infer(
        self, run: RunningBatch, jobs: Sequence[Job]
    ) -> list[InferenceResult[Any]] | Exception:
        """One inference over the jobs' contents: a result per job, or the error of all."""
        model, rows = jobs[0].model, sum(job.queued.rows for job in jobs)
        begun_s = self._watch.begin(run, model.policy.max_infer_s or self._timeout_s)
        try:
            values = jobs[0].infer([job.content for job in jobs])
        except BaseException as raised:  # must not end the thread: other models use it
            error = as_exception(raised)
            release_frames(raised)  # the retry, and other models, need the memory of its tensors
            if is_out_of_memory(error):
                self._times.record_out_of_memory(model.key, rows)
            if (lost := self._loss(error)) is not None:
                self._on_lost(lost)
                # Any of the batch's requests may be the cause, so no other pod may try them.
                return InferenceFailed(f"the device failed for good in this inference: {lost}")
            return error
        ended_s = time.monotonic()
        compute_s = ended_s - begun_s
        if jobs[0].queued.batch_key is not None:
            self._times.observe(model.key, rows, compute_s, ended_s)
            model.suspects.record_served()
        return [
            InferenceResult(
                value, begun_s - job.queued.enqueued_at_s, compute_s, rows, int(begun_s * 1e6)
            )
            for job, value in zip(jobs, values, strict=True)
        ]

    def _loss(self, error: Exception) -> Exception | None:
        """The error that ended the device, if one did; a library's error does not say so itself."""
        if not is_device_lost(error) and is_device_error(error):
            try:
                self._check_device()
            except Exception as found:  # each later call fails like this one
                error = found
        return error if is_device_lost(error) else None


def _finish(
    run: RunningBatch, jobs: Sequence[Job], outcomes: list[InferenceResult[Any]] | Exception
) -> None:
    """Resolve the jobs and count the batch; an abandoned run's jobs are resolved already."""
    model = jobs[0].model.name
    if run.is_abandoned:
        return
    if isinstance(outcomes, Exception):
        BATCHES.labels(model=model, outcome="failed").inc()
        resolve([(job, outcomes) for job in jobs])
        return
    resolve(list(zip(jobs, outcomes, strict=True)))
    if jobs[0].queued.batch_key is None:  # not a request: a warm-up, or a profile
        return
    BATCHES.labels(model, "ok").inc()
    BATCH_SIZE.labels(model).observe(outcomes[0].rows)
    queue_seconds = QUEUE_SECONDS.labels(model)
    for result in outcomes:
        queue_seconds.observe(result.wait_s)
