"""The device worker: one inference at a time, batched per model, the nearest deadline first.

Callers wait on the event loop. `batch` chooses the requests of each batch. A thread in an inference
that hangs is abandoned and counted, and a new one serves the others. It ends at its next line of
Python, unless it hangs in one call of a library. `Suspects` says whether request or model is to
blame.
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
from typing import Any, TypeVar

import torch

from runtime.device.batch_runner import BatchRunner, HangWatch, Job, RunningBatch, resolve
from runtime.device.batch_times import BatchTimes
from runtime.device.device_tensor import KeptMemory
from runtime.device.queue import (
    ASSUMED_DEADLINE_S,
    DeviceModel,
    DeviceQueue,
    InferenceResult,
    Payload,
    QueuedRows,
)
from runtime.device.suspects import digest_of
from runtime.errors import (
    DeadlinePassed,
    InferenceHung,
    ModelBroken,
    PodDraining,
    QueueFull,
    RequestHung,
)
from runtime.metrics import BATCHES, DEVICE_WAITING, STUCK_THREADS

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

INFERENCE_TIMEOUT_S = 60.0
MAX_QUEUED = 1024
"""Inferences that may wait: eight for each of the most slots that a pod has by default."""
CLOSE_TIMEOUT_S = 5.0
"""How long `close` waits for the running inference."""


class InferenceAbandoned(BaseException):
    """Raised in a thread whose inference is given up."""


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
        self.kept = KeptMemory()
        """Of outputs that stay on the device: by default none does."""
        self.lost_reason: str | None = None
        """Set once the device has failed for good: it runs nothing any more."""
        self._stuck: dict[int, DeviceModel] = {}
        """Abandoned threads whose inference still hangs, and its model."""
        self.timeout_s = timeout_s
        """Longest inference of a model that has no limit of its own."""
        self._threads = threads
        self._max_queued = max_queued
        self._queue: DeviceQueue[Job] = DeviceQueue(self.times)
        self._sequence = itertools.count()
        self._waiting = 0
        DEVICE_WAITING.set_function(lambda: self._waiting)
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._watch = HangWatch(self._lock, self._abandon)
        self._runner = BatchRunner(self.times, self._watch, timeout_s, self.mark_lost, check_device)
        self._is_closed = False
        self._thread = self._new_thread()

    def start(self) -> None:
        self._thread.start()
        self._watch.start()

    def close(self) -> None:
        """Refuse queued jobs and wait for the running inference."""
        with self._lock:
            self._is_closed = True
            self._work.notify_all()
        self._watch.close()
        self._thread.join(CLOSE_TIMEOUT_S)

    @property
    def thread_count(self) -> int:
        """Threads of one inference."""
        return self._threads

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
        resolve([(job, ModelBroken(reason)) for job in self._queue.take_model(model)])

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
            self._runner.is_lost = True
            self.lost_reason = f"the pod's device failed and the pod is replaced: {error}"
            resolve([(job, PodDraining(self.lost_reason)) for job in self._queue.take_all()])
        logger.error("device lost", extra={"error": error})
        self.kept.lose()
        self.on_lost(self.lost_reason)

    async def run(
        self,
        work: Callable[[], Result],
        *,
        deadline_s: float | None = None,
        model: DeviceModel | None = None,
        due_s: float | None = None,
    ) -> InferenceResult[Result]:
        """The result of `work`, run on the device by itself; raises as `infer` does.

        Args:
            work: called in the device's thread.
            deadline_s: the latest time at which it may begin.
            model: the model that is marked broken if `work` hangs.
            due_s: its urgency, where it differs from the deadline.
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

        If the caller is cancelled while its inference runs, this returns when the inference has
        ended, so that the caller can then release what the inference uses.

        `infer`: in place of the model's own; `due_s`: its urgency, where it differs from the
        deadline.

        Raises:
            DeadlinePassed: the deadline passed before the inference began.
            QueueFull: `max_queued` jobs are queued already.
            InferenceFailed: the device failed for good during the inference.
            PodDraining: the device failed for good before it.
            InferenceHung: the inference did not end within the model's time limit.
            ModelBroken: an earlier inference of the model hung.
        """
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
        loop = asyncio.get_running_loop()
        job = Job(model, queued, payload.content, infer or model.infer, loop.create_future())
        self._enqueue(job)
        self._waiting += 1
        try:
            return await job.future
        except asyncio.CancelledError:
            with self._lock:
                was_queued = not job.is_running and self._queue.remove(job)
            if not was_queued and not job.is_resolved:
                job.future = loop.create_future()
                while not job.future.done():
                    with suppress(asyncio.CancelledError):  # again, such as by a deadline
                        await asyncio.wait([job.future])
                job.future.exception()  # nobody else asks for it
            raise
        finally:
            self._waiting -= 1
            del job  # it keeps the error, whose traceback has this frame

    def _enqueue(self, job: Job) -> None:
        with self._lock:
            if job.model.broken_reason is not None:
                raise ModelBroken(job.model.broken_reason)
            if job.model.suspects.hangs:
                self._refuse_suspect(job)
            if self.lost_reason is not None:
                raise PodDraining(self.lost_reason)
            if self._is_closed:
                raise QueueFull("the pod is stopping")
            if len(self._queue) >= self._max_queued:
                raise QueueFull(f"{len(self._queue)} inferences are queued for the device already")
            self._queue.add(job)
            self._work.notify()

    def _refuse_suspect(self, job: Job) -> None:
        refused_s = job.model.suspects.refused_s(job.content, time.monotonic())
        if refused_s:
            raise RequestHung(
                "an inference of this request did not end within the model's time limit; it"
                f" is refused for {refused_s:.0f} s",
                retry_after_s=refused_s,
            )

    # The device's thread

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._serve, name="device", daemon=True)

    def _serve(self) -> None:
        try:
            self._serve_batches()
        except InferenceAbandoned:  # delivered after the inference itself had ended
            logger.info("an abandoned thread ended")
        finally:
            with self._lock:
                if threading.get_ident() in self._stuck:
                    self._stuck.pop(threading.get_ident())
                    STUCK_THREADS.set(self.stuck_threads)

    def _serve_batches(self) -> None:
        torch.set_num_threads(self._threads)
        with torch.inference_mode():
            while (run := self._next_run()) is not None:
                self._runner.run(run)
                with self._lock:
                    if run.is_abandoned:
                        logger.warning("an abandoned inference ended")
                        return
                    self._watch.run = None
                del run  # it keeps a network alive, which may be evicted before the next batch

    def _next_run(self) -> RunningBatch | None:
        """Wait for the next batch; None when the worker closes."""
        with self._lock:
            while not self._is_closed:
                now_s = time.monotonic()
                resolve([(job, _too_late()) for job in self._queue.take_expired(now_s)])
                jobs, wake_s = self._queue.take_next(now_s)
                if jobs:
                    for job in jobs:
                        job.is_running = True
                    self._watch.run = RunningBatch(jobs)
                    return self._watch.run
                self._work.wait(wake_s - now_s if math.isfinite(wake_s) else None)
            resolve([(job, QueueFull("the pod is stopping")) for job in self._queue.take_all()])
            return None

    def _abandon(self, run: RunningBatch) -> None:
        """Give up the thread of a hung inference, and all jobs of a model that is to blame."""
        model, seconds = run.jobs[0].model, run.timeout_at_s - run.begun_s
        reason = f"an inference of {model.key or 'the pod'} did not end within {seconds:g} s"
        digests = [digest_of(job.content) for job in run.jobs if job.infer is not _call_each]
        is_broken = model.suspects.record(digests, time.monotonic())
        stuck = self._thread
        self._stuck[stuck.ident or 0] = model
        STUCK_THREADS.set(self.stuck_threads)
        BATCHES.labels(model=model.name, outcome="hung").inc()
        logger.error("inference hangs", extra={"key": model.key, "after_s": seconds})
        if is_broken:
            self._break(model, reason)
        resolve([(job, InferenceHung(reason)) for job in run.jobs])
        self._thread = self._new_thread()
        self._thread.start()
        _interrupt(stuck)
        if model.key:
            self.on_hung(model.key, reason, is_broken)


def _too_late() -> DeadlinePassed:
    return DeadlinePassed("the request waited until its deadline left no time for an inference")


def _interrupt(thread: threading.Thread) -> None:
    """Raise InferenceAbandoned in the thread, at its next line of Python."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident or 0), ctypes.py_object(InferenceAbandoned)
    )


def _call_each(works: Sequence[Callable[[], Any]]) -> list[Any]:
    return [work() for work in works]
