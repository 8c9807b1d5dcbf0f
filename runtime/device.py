"""The device worker: one thread that runs one inference at a time, the nearest deadline first.

Whoever waits does so on the event loop. Batching would go into `_take`: jobs of one model that
wait together can leave it together.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from runtime.errors import DeadlinePassed, QueueFull, RuntimePackageError
from runtime.metrics import DEVICE_WAITING

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

PATIENCE_S = 60.0
"""Jobs without a deadline are ordered as if theirs were this far away, so that none starves."""


@dataclass(frozen=True, slots=True)
class Ran(Generic[Result]):
    """What a job gave and how long it took. Times in seconds."""

    value: Result
    wait_s: float
    compute_s: float


@dataclass(order=True, slots=True)
class _Job:
    due_s: float
    sequence: int
    deadline_s: float | None = field(compare=False)
    work: Callable[[], Any] = field(compare=False)
    future: asyncio.Future[Ran[Any]] = field(compare=False)
    queued_s: float = field(compare=False)
    is_running: bool = field(compare=False, default=False)


class DeviceWorker:
    """Runs inference for one device. Times are of `time.monotonic`."""

    def __init__(self, *, threads: int, most_waiting: int) -> None:
        self._threads = threads
        self._most_waiting = most_waiting
        self._jobs: list[_Job] = []
        self._sequence = itertools.count()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="device", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Let the running job end, refuse the others."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    async def run(
        self, work: Callable[[], Result], *, deadline_s: float | None = None
    ) -> Ran[Result]:
        """The result of `work`, run on the device; raises DeadlinePassed, QueueFull.

        A caller that is cancelled while its job runs gets control back when the job has ended,
        so what the job uses can be released then.
        """
        now_s = time.monotonic()
        future: asyncio.Future[Ran[Result]] = asyncio.get_running_loop().create_future()
        due_s = deadline_s if deadline_s is not None else now_s + PATIENCE_S
        job = _Job(due_s, next(self._sequence), deadline_s, work, future, now_s)
        with self._changed:
            if len(self._jobs) >= self._most_waiting:
                raise QueueFull(f"{len(self._jobs)} inferences wait for the device already")
            heapq.heappush(self._jobs, job)
            self._changed.notify()
        DEVICE_WAITING.inc()
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            with self._changed:
                if not job.is_running and job in self._jobs:
                    self._jobs.remove(job)
                    heapq.heapify(self._jobs)
                    future.cancel()
            if not future.done():
                await asyncio.wait([future])
            raise
        finally:
            DEVICE_WAITING.dec()

    def _serve(self) -> None:
        torch.set_num_threads(self._threads)
        with torch.inference_mode():
            while (job := self._take()) is not None:
                _run_job(job)

    def _take(self) -> _Job | None:
        """The next job; None when the worker closes."""
        with self._changed:
            while not self._jobs and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                for job in self._jobs:
                    _settle(job, QueueFull("the pod is stopping"))
                self._jobs.clear()
                return None
            job = heapq.heappop(self._jobs)
            job.is_running = True
            return job


def _run_job(job: _Job) -> None:
    started_s = time.monotonic()
    if job.deadline_s is not None and started_s >= job.deadline_s:
        _settle(job, DeadlinePassed("the deadline passed while the request waited for the device"))
        return
    try:
        value = job.work()
    except RuntimePackageError as error:
        _settle(job, error)
    except Exception as error:  # whatever a network raises belongs to its request alone
        _settle(job, error)
    else:
        ended_s = time.monotonic()
        _settle(job, Ran(value, started_s - job.queued_s, ended_s - started_s))


def _settle(job: _Job, outcome: Ran[Any] | Exception) -> None:
    """Hand the outcome to the waiting caller, on its event loop."""

    def hand_over() -> None:
        if job.future.done():
            return
        if isinstance(outcome, Exception):
            job.future.set_exception(outcome)
        else:
            job.future.set_result(outcome)

    try:
        job.future.get_loop().call_soon_threadsafe(hand_over)
    except RuntimeError:  # the event loop is closed: nobody waits any more
        logger.debug("device job ended after its event loop")
