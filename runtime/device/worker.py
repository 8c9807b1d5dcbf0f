"""The device worker: one inference at a time, batched per model, the nearest deadline first.

Callers wait on the event loop; the thread of the device takes batches, which `queue` chooses, and
runs them. A thread in an inference that hangs is abandoned, and a new one serves the others; it
ends unless it hangs in one call of a library. `Suspects` says whether request or model is to blame.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from common.inference_protocol import PodError
from runtime.device.batch_times import BatchTimes
from runtime.device.device_errors import (
    is_device_error,
    is_device_lost,
    is_out_of_memory,
    release_frames,
)
from runtime.device.queue import (
    ASSUMED_DEADLINE_S,
    DeviceModel,
    DeviceQueue,
    InferenceResult,
    Payload,
    Queued,
    QueuedRows,
    Result,
    digest_of,
)
from runtime.errors import (
    DeadlinePassed,
    InferenceFailed,
    InferenceHung,
    ModelBroken,
    PodDraining,
    QueueFull,
    RequestHung,
)
from runtime.metrics import BATCHES, DEVICE_WAITING, STUCK_THREADS, batch_series
from runtime.threads import as_exception

logger = logging.getLogger(__name__)

INFERENCE_TIMEOUT_S = 60.0
MAX_QUEUED = 1024
"""Inferences that may wait: eight for each of the most slots that a pod has by default."""
CLOSE_TIMEOUT_S = 5.0
"""How long `close` waits for the running inference."""


class InferenceAbandoned(BaseException):
    """Raised in a thread whose inference is given up."""


@dataclass(eq=False, slots=True)
class Job(Queued):
    """One inference, or other work for the device."""

    content: Any
    infer: Callable[[Sequence[Any]], list[Any]]
    """One inference over the contents of several jobs of its batch key."""
    future: asyncio.Future[InferenceResult[Any]]
    is_running: bool = False
    is_given_up: bool = False
    """Its caller was cancelled while it ran, and waits for its end only."""
    is_resolved: bool = False
    """Its outcome has come, also where nobody waits for it any more."""


@dataclass(eq=False, slots=True)
class RunningBatch:
    """The batch that a thread runs. Mutable: started again for each part of a batch that failed."""

    jobs: Sequence[Job]
    begun_s: float = 0.0
    timeout_at_s: float = math.inf
    is_abandoned: bool = False


class DeviceWorker:
    """Runs inference for one device. Times are of `time.monotonic`."""

    def __init__(
        self,
        *,
        threads: int,
        max_queued: int = MAX_QUEUED,
        timeout_s: float = INFERENCE_TIMEOUT_S,
        check_device: Callable[[], None] = lambda: None,
    ) -> None:
        """`check_device` raises if the device has failed for good (`DeviceMemory.check`)."""
        self.times = BatchTimes()
        self.on_hung: Callable[[str, str, bool], None] = lambda key, reason, is_broken: None
        """Called in a thread of the worker with a model's key, the reason, and whether it broke."""
        self.on_lost: Callable[[str], None] = lambda reason: None
        """Called with the reason when the device fails for good, in the thread that detects it."""
        self.lost_reason: str | None = None
        """Set once the device has failed for good: it runs nothing any more."""
        self.thread_count = threads
        """Threads of one inference."""
        self._cpu_s = time.thread_time if threads == 1 else time.process_time
        """Clock of the CPU time of inferences: with several threads that of the process."""
        self.timeout_s = timeout_s
        """Longest inference of a model that has no limit of its own."""
        self._max_queued = max_queued
        self._check_device = check_device
        self._sequence = itertools.count()
        self._waiting = 0
        DEVICE_WAITING.set_function(lambda: self._waiting)
        self._lock = threading.Lock()
        """Of all that follows."""
        self._queue: DeviceQueue[Job] = DeviceQueue(self.times)
        self._stuck: dict[int, DeviceModel] = {}
        """Abandoned threads whose inference still hangs, and its model."""
        self._is_closed = False
        self._work = threading.Condition(self._lock)
        self._thread = self._new_thread()
        self._batch: RunningBatch | None = None
        """The one that is watched."""
        self._watched_until_s = math.inf
        self._watch_changed = threading.Condition(self._lock)
        self._watch = threading.Thread(target=self._watch_batches, name="device-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._watch.start()

    def close(self) -> None:
        """Refuse queued jobs and wait for the running inference."""
        with self._lock:
            self._is_closed = True
            self._work.notify_all()
            self._watch_changed.notify_all()
        self._watch.join()
        self._thread.join(CLOSE_TIMEOUT_S)
        with self._lock:
            batch, self._batch = self._batch, None
        if batch is not None:  # it has not ended, and callers would wait for it
            _refuse(batch.jobs, InferenceHung, "the pod is stopping")

    @property
    def stuck_threads(self) -> int:
        return len(self._stuck)

    def stuck_threads_of(self, key: str) -> int:
        with self._lock:
            return sum(model.key == key for model in self._stuck.values())

    def mark_broken(self, key: str, reason: str) -> None:
        """Refuse all inferences of a model that has stuck threads."""
        with self._lock:
            for model in {each for each in self._stuck.values() if each.key == key}:
                self._break(model, reason)

    def _break(self, model: DeviceModel, reason: str) -> None:
        model.broken_reason = reason
        _refuse(self._queue.take_model(model), ModelBroken, reason)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and self.lost_reason is None

    def mark_lost(self, error: Exception) -> None:
        """Refuse all work: the device failed for good, and only a new process can use it again.

        Queued jobs get PodDraining: they did not run, so another pod can serve them.
        """
        with self._lock:
            if self.lost_reason is not None:
                return
            self.lost_reason = f"the pod's device failed and the pod is replaced: {error}"
            _refuse(self._queue.take_all(), PodDraining, self.lost_reason)
        self.on_lost(self.lost_reason)

    # On the event loop: a job waits in the queue, and for its outcome

    async def run(
        self,
        work: Callable[[], Result],
        *,
        deadline_s: float | None = None,
        model: DeviceModel | None = None,
        due_s: float | None = None,
    ) -> InferenceResult[Result]:
        """The result of `work`, run in the device's thread by itself; raises as `infer` does.

        `model`: the one that is marked broken if `work` hangs.
        """
        return await self.infer(
            model or DeviceModel(), Payload(work), _call_each, deadline_s=deadline_s, due_s=due_s
        )

    async def infer(
        self,
        model: DeviceModel,
        payload: Payload,
        infer: Callable[[Sequence[Any]], list[Any]] | None = None,
        *,
        deadline_s: float | None = None,
        due_s: float | None = None,
    ) -> InferenceResult[Any]:
        """The model's result for a payload, inferred in one batch with others of its batch key.

        If the caller is cancelled while its inference runs, however often, this returns when the
        inference has ended, so that the caller can then release what the inference uses.

        `infer`: in place of the model's own. `deadline_s`: the latest time at which it may begin;
        `due_s`: its urgency, where that differs.

        Raises:
            DeadlinePassed: the deadline passed before the inference began.
            QueueFull: `max_queued` jobs are queued already.
            InferenceFailed: the device failed for good during the inference.
            PodDraining: the device failed for good before it.
            InferenceHung: the inference did not end within the model's time limit.
            ModelBroken: an earlier inference of the model hung.
        """
        job = self._add(model, payload, infer or model.infer, deadline_s=deadline_s, due_s=due_s)
        self._waiting += 1
        try:
            return await job.future
        except asyncio.CancelledError:
            was_queued = self.withdraw(job)
            while not was_queued and not job.is_resolved:
                job.future = asyncio.get_running_loop().create_future()
                with suppress(asyncio.CancelledError):  # again: the inference still runs
                    await asyncio.wait([job.future])
            if job.future.done() and not job.future.cancelled():
                job.future.exception()  # nobody else asks for it
            raise
        finally:
            self._waiting -= 1
            del job  # it keeps the error, whose traceback has this frame

    def submit(self, work: Callable[[], Any], *, model: DeviceModel, due_s: float) -> Job:
        """As `run`, for callers that go on meanwhile: `work` is queued when this returns.

        The model must stay in use until the job's future is done, or the job withdrawn.
        """
        return self._add(model, Payload(work), _call_each, due_s=due_s)

    def withdraw(self, job: Job) -> bool:
        """Take back a job that has not begun, and cancel its future; False: it runs to its end."""
        with self._lock:
            job.is_given_up = True
            was_queued = not job.is_running and self._queue.remove(job)
        return was_queued and (job.future.cancel() or True)

    def _add(
        self,
        model: DeviceModel,
        payload: Payload,
        infer: Callable[[Sequence[Any]], list[Any]],
        *,
        deadline_s: float | None = None,
        due_s: float | None = None,
    ) -> Job:
        now_s = time.monotonic()
        queued = QueuedRows(
            sequence=next(self._sequence),
            due_s=due_s or deadline_s or now_s + ASSUMED_DEADLINE_S,
            enqueued_at_s=now_s,
            deadline_s=deadline_s,
            rows=payload.rows,
            tokens_per_row=payload.tokens_per_row,
            batch_key=payload.batch_key,
        )
        future = asyncio.get_running_loop().create_future()
        job = Job(model, queued, payload.content, infer, future)
        with self._lock:
            if model.broken_reason is not None:
                raise ModelBroken(model.broken_reason)
            if refused_s := model.suspects.refused_s(job.content, now_s):
                raise RequestHung(
                    "an inference of this request did not end within the model's time limit; it"
                    f" is refused for {refused_s:.0f} s",
                    retry_after_s=refused_s,
                )
            if self.lost_reason is not None:
                raise PodDraining(self.lost_reason)
            if self._is_closed:
                raise QueueFull("the pod is stopping")
            if len(self._queue) >= self._max_queued:
                raise QueueFull(f"{len(self._queue)} inferences are queued for the device already")
            self._queue.add(job)
            self._work.notify()
        return job

    # In the device's thread: a batch is taken, run, and its jobs get their outcomes

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._serve, name="device", daemon=True)

    def _serve(self) -> None:
        try:
            self._serve_batches()
        except InferenceAbandoned:  # delivered after the inference itself had ended
            logger.info("an abandoned thread ended")
        finally:
            with self._lock:
                if self._stuck.pop(threading.get_ident(), None) is not None:
                    STUCK_THREADS.set(self.stuck_threads)

    def _serve_batches(self) -> None:
        torch.set_num_threads(self.thread_count)
        with torch.inference_mode():
            while (batch := self._next_batch()) is not None:
                self._run(batch)
                with self._lock:
                    if batch.is_abandoned:
                        logger.warning("an abandoned inference ended")
                        return
                    self._batch = None
                del batch  # it keeps a network alive, which may be evicted before the next batch

    def _next_batch(self) -> RunningBatch | None:
        """Wait for the next batch; None when the worker closes."""
        with self._lock:
            while not self._is_closed:
                now_s = time.monotonic()
                _refuse(self._queue.take_expired(now_s), DeadlinePassed, _TOO_LATE)
                jobs, wake_s = self._queue.take_next(now_s)
                if jobs:
                    for job in jobs:
                        job.is_running = True
                    self._batch = RunningBatch(jobs)
                    return self._batch
                self._work.wait(min(wake_s - now_s, threading.TIMEOUT_MAX))
            _refuse(self._queue.take_all(), QueueFull, "the pod is stopping")
            return None

    def _run(self, batch: RunningBatch) -> None:
        """Run the batch; if it fails, run each job alone, so that only the faulty ones fail."""
        jobs, model = batch.jobs, batch.jobs[0].model
        outcomes = self._infer(batch, jobs)
        can_split = len(jobs) > 1 and not batch.is_abandoned and self.lost_reason is None
        if not isinstance(outcomes, Exception) or not can_split:
            _finish(batch, jobs, outcomes)
            return
        extra = {"key": model.key, "error": outcomes}
        logger.info("batch failed, its requests run one by one", extra=extra)
        BATCHES.labels(model=model.name, outcome="split").inc()
        for job in jobs:
            if job.is_given_up:  # nobody has use for its result
                _resolve([job], outcomes)
            elif not batch.is_abandoned:
                _finish(batch, [job], self._infer(batch, [job]))  # a lost device fails the rest

    def _infer(
        self, batch: RunningBatch, jobs: Sequence[Job]
    ) -> list[InferenceResult[Any]] | Exception:
        """One inference over the jobs' contents: a result per job, or the error of all."""
        model, rows = jobs[0].model, sum(job.queued.rows for job in jobs)
        begun_s = self._begin(batch, model.policy.max_infer_s or self.timeout_s)
        cpu_s = self._cpu_s()
        try:
            values = jobs[0].infer([job.content for job in jobs])
        except BaseException as raised:  # must not end the thread: other models use it
            error = as_exception(raised)
            release_frames(raised)  # the retry, and other models, need the memory of its tensors
            if is_out_of_memory(error):
                self.times.record_out_of_memory(model.key, rows)
            if (lost := self._loss(error)) is not None:
                self.mark_lost(lost)
                # Any of the batch's requests may be the cause, so no other pod may try them.
                return InferenceFailed(f"the device failed for good in this inference: {lost}")
            return error
        ended_s = time.monotonic()
        compute_s = ended_s - begun_s
        if jobs[0].queued.batch_key is not None:
            self.times.observe(model.key, rows, compute_s, ended_s, self._cpu_s() - cpu_s)
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

    # Batches that hang

    def _begin(self, batch: RunningBatch, limit_s: float) -> float:
        """Start the time of a batch, or of a part that runs alone; returns now."""
        with self._lock:
            batch.begun_s = time.monotonic()
            batch.timeout_at_s = batch.begun_s + limit_s
            if batch.timeout_at_s < self._watched_until_s:
                self._watch_changed.notify()
            return batch.begun_s

    def _watch_batches(self) -> None:
        """Sleeps until the time limit of the batch that it last read, so it wakes up rarely."""
        with self._lock:
            while not self._is_closed:
                batch, now_s = self._batch, time.monotonic()
                if batch is not None and now_s >= batch.timeout_at_s:
                    self._abandon(batch)
                    continue
                self._watched_until_s = math.inf if batch is None else batch.timeout_at_s
                del batch  # it must not keep a network alive while nothing else runs
                self._watch_changed.wait(min(self._watched_until_s - now_s, threading.TIMEOUT_MAX))

    def _abandon(self, batch: RunningBatch) -> None:
        """Give up the thread of a hung inference, and all jobs of a model that is to blame."""
        batch.is_abandoned, self._batch = True, None
        model, seconds = batch.jobs[0].model, batch.timeout_at_s - batch.begun_s
        reason = f"an inference of {model.key or 'the pod'} did not end within {seconds:g} s"
        digests = [digest_of(job.content) for job in batch.jobs if job.infer is not _call_each]
        is_broken = model.suspects.record(digests, time.monotonic())
        stuck = self._thread
        self._stuck[stuck.ident or 0] = model
        STUCK_THREADS.set(self.stuck_threads)
        BATCHES.labels(model=model.name, outcome="hung").inc()
        logger.error("inference hangs", extra={"key": model.key, "after_s": seconds})
        if is_broken:
            self._break(model, reason)
        _refuse(batch.jobs, InferenceHung, reason)
        self._thread = self._new_thread()
        self._thread.start()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(  # raised at its next line of Python
            ctypes.c_ulong(stuck.ident or 0), ctypes.py_object(InferenceAbandoned)
        )
        if model.key:
            self.on_hung(model.key, reason, is_broken)


_TOO_LATE = "the request waited until its deadline left no time for an inference"


def _finish(
    batch: RunningBatch, jobs: Sequence[Job], outcomes: list[InferenceResult[Any]] | Exception
) -> None:
    """Resolve the jobs and count the batch; an abandoned one's jobs are resolved already."""
    model = jobs[0].model.name
    if batch.is_abandoned:
        return
    if isinstance(outcomes, Exception):
        BATCHES.labels(model=model, outcome="failed").inc()
    elif jobs[0].queued.batch_key is not None:  # a request, not a warm-up or a profile
        batches, batch_size, queue_seconds = batch_series(model)
        batches.inc()
        batch_size.observe(outcomes[0].rows)
        for result in outcomes:
            queue_seconds.observe(result.wait_s)
    _resolve(jobs, outcomes)  # last: the event loop needs Python's lock


def _refuse(jobs: Sequence[Job], kind: type[PodError], reason: str) -> None:
    """Resolve each job with an error of its own."""
    if jobs:
        _resolve(jobs, [kind(reason) for _ in jobs])


def _resolve(
    jobs: Sequence[Job], outcomes: Sequence[InferenceResult[Any] | Exception] | Exception
) -> None:
    """Resolve the jobs' futures on their event loop, with one wake-up for all of them."""
    each_outcome = [outcomes] * len(jobs) if isinstance(outcomes, Exception) else outcomes

    def set_outcomes() -> None:
        for job, outcome in zip(jobs, each_outcome, strict=True):
            job.is_resolved = True
            if job.future.done():
                continue
            if isinstance(outcome, Exception):
                job.future.set_exception(outcome)
            else:
                job.future.set_result(outcome)

    try:
        jobs[0].future.get_loop().call_soon_threadsafe(set_outcomes)
    except RuntimeError:  # the event loop is closed
        logger.debug("device job ended after its event loop")


def _call_each(works: Sequence[Callable[[], Any]]) -> list[Any]:
    return [work() for work in works]
