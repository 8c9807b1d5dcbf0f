"""The device's queue, per model, and the choice of the next batch.

Owned by the device worker, which locks around every call, or by a simulated device.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from registry.domain.probes import ProbeBudget
from registry.domain.tenant_usage import TenantUsage
from runtime.device.device_model import DeviceModel, QueuedRows, form_batch

if TYPE_CHECKING:
    from runtime.device.batch_times import BatchTimes

logger = logging.getLogger(__name__)

ASSUMED_DEADLINE_S: Final = 60.0
"""Deadline of jobs without one, from the time they were queued, so that none of them starves."""

LEAST_BATCH_S: Final = 0.001
"""What a batch counts whose time is not known."""

Result = TypeVar("Result")
Q = TypeVar("Q", bound="Queued")


@dataclass(frozen=True, slots=True)
class InferenceResult(Generic[Result]):
    """The result of a job and its times in seconds."""

    value: Result
    wait_s: float
    compute_s: float
    """Of the whole batch."""
    rows: int = 1
    """Items in the batch, other requests' included."""
    batch: int = 0
    """Names the inference within its pod: requests with the same number shared it; 0: several."""


@dataclass(eq=False, slots=True)
class Queued:
    model: DeviceModel
    queued: QueuedRows
    is_probe: bool = field(default=False, kw_only=True)
    """It may run although it is expected to end after its deadline."""


@dataclass(eq=False, slots=True)
class Job(Queued):
    """One inference, or other work for the device."""

    content: Any
    infer: Callable[[Sequence[Any]], list[Any]]
    """One inference over the contents of several jobs of its batch key."""
    future: asyncio.Future[InferenceResult[Any]]
    is_running: bool = False


class DeviceQueue(Generic[Q]):
    """Queued jobs by model and order of arrival."""

    def __init__(self, times: BatchTimes) -> None:
        self._times = times
        self._jobs: dict[DeviceModel, dict[int, Q]] = {}
        self._count = 0
        self._earliest_s = math.inf
        """Lower bound of the times by which queued jobs must have begun."""
        self._usage = TenantUsage()
        self.probes = ProbeBudget()
        """Of jobs that may run although they are expected to end after their deadline."""

    def __len__(self) -> int:
        return self._count

    def add(self, job: Q) -> None:
        self._jobs.setdefault(job.model, {})[job.queued.sequence] = job
        self._count += 1
        self._earliest_s = min(self._earliest_s, self._latest_start_s(job))

    def remove(self, job: Q) -> bool:
        """Remove a job; False if it is not in the queue."""
        jobs = self._jobs.get(job.model, {})
        if jobs.pop(job.queued.sequence, None) is None:
            return False
        self._count -= 1
        if not jobs:
            del self._jobs[job.model]
        return True

    def take_next(self, now_s: float) -> tuple[list[Q], float]:
        """The jobs of the next batch that is ready, and the time.

        Of the tenant that used the device least lately, the most urgent batch. Without a ready
        batch: no jobs, and the time at which the next batch is ready.
        """
        wake_s = math.inf
        models = self._jobs
        ordered = list(models)
        if len(ordered) > 1:
            ordered.sort(key=lambda each: self._rank(each, now_s))
        for model in ordered:
            jobs = self._jobs[model]
            queued = [job.queued for job in jobs.values()]
            batch = form_batch(queued, now_s, model.limits(self._times))
            if batch is not None and batch.ready_s <= now_s:
                taken = [jobs[each.sequence] for each in batch.members]
                for job in taken:
                    self.remove(job)
                rows = sum(job.queued.rows for job in taken)
                batch_s = max(LEAST_BATCH_S, self._times.usual_s(model.key, rows, now_s))
                self._usage.add(model.tenant, batch_s, now_s)
                return taken, now_s
            if batch is not None:
                wake_s = min(wake_s, batch.ready_s)
        return [], wake_s

    def _rank(
        self, model: DeviceModel, now_s: float
    ) -> tuple[tuple[float, int], tuple[float, int]]:
        urgency = min(job.queued.urgency for job in self._jobs[model].values())
        return self._usage.rank(model.tenant, now_s), urgency

    def take_expired(self, now_s: float) -> list[Q]:
        """Remove the jobs that cannot end before their deadline: nobody waits for their results.

        By the usual time of the batch that each would be in. A job without others in the queue is
        tried all the same, and so are some others: the measurements may be of larger requests, or
        out of date.
        """
        if now_s < self._earliest_s:
            return []
        waiting = {
            model: sum(job.queued.rows for job in jobs.values())
            for model, jobs in self._jobs.items()
        }
        expired = self._take(lambda job: self._is_expired(job, waiting[job.model], now_s))
        queued = [job for jobs in self._jobs.values() for job in jobs.values()]
        self._earliest_s = min([self._latest_start_s(job) for job in queued], default=math.inf)
        return expired

    def _latest_start_s(self, job: Q) -> float:
        """By the time of the batch that takes longest."""
        deadline_s = job.queued.deadline_s
        if deadline_s is None:
            return math.inf
        if job.is_probe:
            return deadline_s
        return deadline_s - self._times.longest_batch_s(job.model.key)

    def _is_expired(self, job: Q, waiting: int, now_s: float) -> bool:
        deadline_s = job.queued.deadline_s
        if deadline_s is None or now_s < self._latest_start_s(job):
            return False
        if now_s >= deadline_s:
            return True
        if self._count == 1:
            return False
        key, rows = job.model.key, min(waiting, job.model.limits(self._times).max_rows)
        usual_s = self._times.usual_s(key, rows, now_s)
        if now_s < deadline_s - usual_s:
            return False
        if not self.probes.is_due(key, now_s):
            return True
        job.is_probe = True  # until its deadline, see `_latest_start_s`
        self.probes.spend(key, now_s, usual_s)
        return False

    def take_model(self, model: DeviceModel) -> list[Q]:
        return self._take(lambda job: job.model is model)

    def take_all(self) -> list[Q]:
        return self._take(lambda job: True)

    def _take(self, matches: Callable[[Q], bool]) -> list[Q]:
        jobs = [job for jobs in self._jobs.values() for job in jobs.values() if matches(job)]
        for job in jobs:
            self.remove(job)
        return jobs


def resolve(outcomes: Sequence[tuple[Job, InferenceResult[Any] | Exception]]) -> None:
    """Resolve the jobs' futures on their event loop, with one wake-up for all of them."""

    def set_outcomes() -> None:
        for job, outcome in outcomes:
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
