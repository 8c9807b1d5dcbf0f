"""The device worker: one inference at a time, batched per model, the nearest deadline first.

Whoever waits does so on the event loop. Which requests go together is decided by `batch`. A thread
in an inference that does not end cannot be killed: it is abandoned and counted, its model is broken
from then on, and a fresh thread goes on with the others.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from runtime.device.batch import QueuedRows
from runtime.device.batch_times import BatchTimes
from runtime.device.device_errors import is_device_lost, is_out_of_memory
from runtime.device.device_model import DeviceModel, Payload
from runtime.device.queue import ASSUMED_DEADLINE_S, DeviceQueue, InferenceResult, Job, settle
from runtime.errors import (
    DeadlinePassed,
    InferenceFailed,
    InferenceHung,
    ModelBroken,
    PodDraining,
    QueueFull,
)
from runtime.metrics import BATCH_SIZE, BATCHES, DEVICE_WAITING, QUEUE_SECONDS, STUCK_THREADS
from runtime.threads import as_bearable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

TIME_LIMIT_S = 60.0
CLOSE_PATIENCE_S = 5.0
"""How long a close waits for an inference that is under way."""


@dataclass(eq=False, slots=True)
class _Run:
    """What a thread is at. Mutable: begun anew for each part of a batch that failed."""

    jobs: Sequence[Job]
    begun_s: float = 0.0
    give_up_s: float = math.inf
    is_abandoned: bool = False


class DeviceWorker:
    """Runs inference for one device. Times are of `time.monotonic`."""

    def __init__(
        self, *, threads: int, max_queued: int, time_limit_s: float = TIME_LIMIT_S
    ) -> None:
        self.times = BatchTimes()
        self.on_hung: Callable[[str, str], None] = lambda key, reason: None
        """Called in a thread of the worker with the key of a model that broke, and why."""
        self.on_lost: Callable[[str], None] = lambda reason: None
        """Called, in whatever thread saw it, when the device failed for good."""
        self.lost: str | None = None
        """Why the device runs nothing any more."""
        self.stuck_threads = 0
        """Threads that were abandoned and have not come back."""
        self._threads = threads
        self._max_queued = max_queued
        self._time_limit_s = time_limit_s
        self._queue: DeviceQueue[Job] = DeviceQueue(self.times)
        self._sequence = itertools.count()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._overdue = threading.Condition(self._lock)
        self._watched_until_s = math.inf
        self._run: _Run | None = None
        self._is_closed = False
        self._thread = self._new_thread()
        self._watcher = threading.Thread(target=self._watch, name="device-watch", daemon=True)

    def start(self) -> None:
        """Start the threads."""
        self._thread.start()
        self._watcher.start()

    def close(self) -> None:
        """Let the running inference end, refuse the others."""
        with self._lock:
            self._is_closed = True
            self._work.notify_all()
            self._overdue.notify_all()
        self._watcher.join()
        self._thread.join(CLOSE_PATIENCE_S)

    @property
    def is_alive(self) -> bool:
        """Whether there is a thread that runs what is asked of it, and a device for it."""
        return self._thread.is_alive() and self.lost is None

    def lose(self, error: Exception) -> None:
        """Take nothing more: the device failed for good, and only a new process can use it again.

        Who waits is refused, and can be served elsewhere; nothing of theirs was executed.
        """
        with self._lock:
            if self.lost is not None:
                return
            self.lost = f"the pod's device failed and the pod is replaced: {error}"
            settle([(job, PodDraining(self.lost)) for job in self._queue.take_all()])
        logger.error("device lost", extra={"error": error})
        self.on_lost(self.lost)

    async def run(
        self,
        work: Callable[[], Result],
        *,
        deadline_s: float | None = None,
        model: DeviceModel | None = None,
        due_s: float | None = None,
    ) -> InferenceResult[Result]:
        """The result of `work`, run on the device by itself; raises as `infer` does.

        `model` says which model is broken if it does not end, `due_s` how urgent it is.
        """
        return await self._wait_for(
            model or DeviceModel(), Payload(work), _alone, deadline_s=deadline_s, due_s=due_s
        )

    async def infer(
        self, model: DeviceModel, payload: Payload, *, deadline_s: float | None = None
    ) -> InferenceResult[Any]:
        """What the model gives for a payload, inferred with others of its kind.

        A caller that is cancelled while its inference runs gets control back when that has ended,
        so what it uses can be released then.

        Raises:
            DeadlinePassed: its turn came too late.
            QueueFull: too many wait already.
            InferenceFailed: the device failed for good under it.
            Draining: the device failed for good before it.
            InferenceHung: it was under way and did not end in the model's time.
            ModelBroken: an earlier inference of the model did not end.
        """
        return await self._wait_for(model, payload, model.infer, deadline_s=deadline_s, due_s=None)

    async def _wait_for(
        self,
        model: DeviceModel,
        payload: Payload,
        infer: Callable[[Sequence[Any]], list[Any]],
        *,
        deadline_s: float | None,
        due_s: float | None,
    ) -> InferenceResult[Any]:
        now_s = time.monotonic()
        waiting = QueuedRows(
            sequence=next(self._sequence),
            due_s=due_s or deadline_s or now_s + ASSUMED_DEADLINE_S,
            enqueued_at_s=now_s,
            deadline_s=deadline_s,
            rows=payload.rows,
            tokens_per_row=payload.tokens_per_row,
            batch_key=payload.batch_key,
        )
        future = asyncio.get_running_loop().create_future()
        job = Job(model, waiting, payload.content, infer, future)
        self._enqueue(job)
        DEVICE_WAITING.inc()
        try:
            return await asyncio.shield(job.future)
        except asyncio.CancelledError:
            with self._lock:
                if not job.is_running and self._queue.remove(job):
                    job.future.cancel()
            if not job.future.done():
                await asyncio.wait([job.future])
            raise
        finally:
            DEVICE_WAITING.dec()

    def _enqueue(self, job: Job) -> None:
        with self._lock:
            if job.model.broken_reason is not None:
                raise ModelBroken(job.model.broken_reason)
            if self.lost is not None:
                raise PodDraining(self.lost)
            if self._is_closed:
                raise QueueFull("the pod is stopping")
            if len(self._queue) >= self._max_queued:
                raise QueueFull(f"{len(self._queue)} inferences wait for the device already")
            self._queue.add(job)
            self._work.notify()

    # The device's thread

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._serve, name="device", daemon=True)

    def _serve(self) -> None:
        torch.set_num_threads(self._threads)
        with torch.inference_mode():
            while (run := self._take()) is not None:
                self._carry_out(run)
                with self._lock:
                    if run.is_abandoned:
                        self._count_stuck(-1)
                        logger.warning("an abandoned inference ended after all")
                        return
                    self._run = None
                del run  # with it the network, which may have left before there is more to do

    def _take(self) -> _Run | None:
        """What to run now; None when the worker closes."""
        with self._lock:
            while not self._is_closed:
                now_s = time.monotonic()
                late = DeadlinePassed("the deadline passed while the request waited for the device")
                settle([(job, late) for job in self._queue.take_late(now_s)])
                jobs, wake_s = self._queue.take_next(now_s)
                if jobs:
                    for job in jobs:
                        job.is_running = True
                    self._run = _Run(jobs)
                    return self._run
                self._work.wait(wake_s - now_s if math.isfinite(wake_s) else None)
            settle([(job, QueueFull("the pod is stopping")) for job in self._queue.take_all()])
            return None

    def _carry_out(self, run: _Run) -> None:
        """Run the batch; where it fails as a whole, each of it alone: only the guilty ones fail."""
        jobs, model = run.jobs, run.jobs[0].model
        outcomes = self._attempt(run, jobs)
        is_worth_splitting = len(jobs) > 1 and not run.is_abandoned and self.lost is None
        if isinstance(outcomes, Exception) and is_worth_splitting:
            logger.info("batch failed, run apart", extra={"key": model.key, "error": outcomes})
            BATCHES.labels(model=model.name, outcome="split").inc()
            for job in jobs:
                if not run.is_abandoned:
                    _finish(run, [job], self._attempt(run, [job]))  # a lost device fails the rest
        else:
            _finish(run, jobs, outcomes)

    def _attempt(self, run: _Run, jobs: Sequence[Job]) -> list[InferenceResult[Any]] | Exception:
        """One inference over the jobs' contents."""
        model, rows = jobs[0].model, sum(job.queued.rows for job in jobs)
        begun_s = self._begin(run, model)
        try:
            values = jobs[0].infer([job.content for job in jobs])
        except BaseException as raised:  # it belongs to the network's requests alone
            error = as_bearable(raised)
            if is_out_of_memory(error):
                self.times.ran_out_of_memory(model.key, rows)
            if is_device_lost(error):
                self.lose(error)
                return _lost_under(error)
            return error
        compute_s = time.monotonic() - begun_s
        if jobs[0].queued.batch_key is not None:
            self.times.observe(model.key, rows, compute_s)
        return [
            InferenceResult(value, begun_s - job.queued.enqueued_at_s, compute_s, rows)
            for job, value in zip(jobs, values, strict=True)
        ]

    def _begin(self, run: _Run, model: DeviceModel) -> float:
        with self._lock:
            run.begun_s = time.monotonic()
            run.give_up_s = run.begun_s + (model.policy.max_infer_s or self._time_limit_s)
            if run.give_up_s < self._watched_until_s:
                self._overdue.notify()
            return run.begun_s

    # The watcher's thread

    def _watch(self) -> None:
        """Sleep until what ran at the last look would be overdue: that wakes it rarely."""
        with self._lock:
            while not self._is_closed:
                run, now_s = self._run, time.monotonic()
                if run is not None and now_s >= run.give_up_s:
                    self._abandon(run)
                    continue
                self._watched_until_s = math.inf if run is None else run.give_up_s
                del run  # it must not keep a network alive while nothing else runs
                is_timed = math.isfinite(self._watched_until_s)
                self._overdue.wait(self._watched_until_s - now_s if is_timed else None)

    def _abandon(self, run: _Run) -> None:
        """Give up a thread whose inference does not end, and everything of its model."""
        model, seconds = run.jobs[0].model, run.give_up_s - run.begun_s
        model.broken_reason = (
            f"an inference of {model.key or 'the pod'} did not end within {seconds:g} s"
        )
        run.is_abandoned = True
        self._run = None
        self._count_stuck(1)
        BATCHES.labels(model=model.name, outcome="hung").inc()
        logger.error("inference hangs", extra={"key": model.key, "after_s": seconds})
        settle([(job, InferenceHung(model.broken_reason)) for job in run.jobs])
        settle([(job, ModelBroken(model.broken_reason)) for job in self._queue.take_model(model)])
        self._thread = self._new_thread()
        self._thread.start()
        if model.key:
            self.on_hung(model.key, model.broken_reason)

    def _count_stuck(self, change: int) -> None:
        self.stuck_threads += change
        STUCK_THREADS.set(self.stuck_threads)


def _alone(works: Sequence[Callable[[], Any]]) -> list[Any]:
    return [work() for work in works]


def _lost_under(error: Exception) -> InferenceFailed:
    """For the requests that were in the inference: one of them may be to blame, so none is sent on.

    The error's own frames hold tensors, so it does not come along.
    """
    return InferenceFailed(f"the device failed for good under this inference: {error}")


def _finish(
    run: _Run, jobs: Sequence[Job], outcomes: list[InferenceResult[Any]] | Exception
) -> None:
    """Tell the callers and count, unless all were told already that it hangs."""
    model = jobs[0].model.name
    if run.is_abandoned:
        return
    if isinstance(outcomes, Exception):
        BATCHES.labels(model=model, outcome="failed").inc()
        settle([(job, outcomes) for job in jobs])
        return
    settle(list(zip(jobs, outcomes, strict=True)))
    if jobs[0].queued.batch_key is None:  # no request: a warm-up, or a profile
        return
    BATCHES.labels(model=model, outcome="ok").inc()
    BATCH_SIZE.labels(model=model).observe(outcomes[0].rows)
    for ran in outcomes:
        QUEUE_SECONDS.labels(model=model).observe(ran.wait_s)
