"""Runs one batch on the device: its results, times and errors, job by job; tells when it hangs."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.device.batch_times import BatchTimes
from runtime.device.device_errors import (
    is_device_error,
    is_device_lost,
    is_out_of_memory,
    release_frames,
)
from runtime.device.queue import InferenceResult, Queued
from runtime.errors import InferenceFailed
from runtime.metrics import BATCHES, batch_series
from runtime.threads import as_exception

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
            if model.suspects.hangs:
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
    if jobs[0].queued.batch_key is not None:  # a request, not a warm-up or a profile
        batches, batch_size, queue_seconds = batch_series(model)
        batches.inc()
        batch_size.observe(outcomes[0].rows)
        for result in outcomes:
            queue_seconds.observe(result.wait_s)
    resolve(list(zip(jobs, outcomes, strict=True)))  # last: the event loop needs Python's lock


@dataclass(eq=False, slots=True)
class Job(Queued):
    """One inference, or other work for the device."""

    content: Any
    infer: Callable[[Sequence[Any]], list[Any]]
    """One inference over the contents of several jobs of its batch key."""
    future: asyncio.Future[InferenceResult[Any]]
    is_running: bool = False
    is_resolved: bool = False
    """Its outcome has come, also where nobody waits for it any more."""


def resolve(outcomes: Sequence[tuple[Job, InferenceResult[Any] | Exception]]) -> None:
    """Resolve the jobs' futures on their event loop, with one wake-up for all of them."""

    def set_outcomes() -> None:
        for job, outcome in outcomes:
            job.is_resolved = True
            if job.future.done():
                continue
            if isinstance(outcome, Exception):
                job.future.set_exception(outcome)
            else:
                job.future.set_result(outcome)

    if not outcomes:
        return
    try:
        outcomes[0][0].future.get_loop().call_soon_threadsafe(set_outcomes)
    except RuntimeError:  # the event loop is closed
        logger.debug("device job ended after its event loop")


@dataclass(eq=False, slots=True)
class RunningBatch:
    """The batch that a thread runs. Mutable: started again for each part of a batch that failed."""

    jobs: Sequence[Job]
    begun_s: float = 0.0
    timeout_at_s: float = math.inf
    is_abandoned: bool = False


class HangWatch:
    """Watches one run at a time. Shares the device worker's lock."""

    def __init__(self, lock: threading.Lock, on_hung: Callable[[RunningBatch], None]) -> None:
        """`on_hung` is called with the lock held, in the watching thread."""
        self.run: RunningBatch | None = None
        """Guarded by the lock."""
        self._lock = lock
        self._on_hung = on_hung
        self._changed = threading.Condition(lock)
        self._watched_until_s = math.inf
        self._is_closed = False
        self._thread = threading.Thread(target=self._watch, name="device-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def begin(self, run: RunningBatch, limit_s: float) -> float:
        """Start the time of a run; returns now."""
        with self._lock:
            run.begun_s = time.monotonic()
            run.timeout_at_s = run.begun_s + limit_s
            if run.timeout_at_s < self._watched_until_s:
                self._changed.notify()
            return run.begun_s

    def _watch(self) -> None:
        """Sleeps until the time limit of the run that it last read, so it wakes up rarely."""
        with self._lock:
            while not self._is_closed:
                run, now_s = self.run, time.monotonic()
                if run is not None and now_s >= run.timeout_at_s:
                    run.is_abandoned = True
                    self.run = None
                    self._on_hung(run)
                    continue
                self._watched_until_s = math.inf if run is None else run.timeout_at_s
                del run  # it must not keep a network alive while nothing else runs
                is_timed = math.isfinite(self._watched_until_s)
                self._changed.wait(self._watched_until_s - now_s if is_timed else None)
