"""The iterations of a device's continuous batches, as jobs of the runtime's device queue.

As in `runtime.generation.transformers_engine`, every iteration is one job of the device: it queues
among other models' inferences, and the next one only when it has ended. Iterations between which
nothing changes are one event, which is shortened if a request arrives.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf, nextafter

from load.schema import BLOCK_TOKENS
from load.simulator.cluster.plan import ModelPlan
from load.simulator.event_queue import EventQueue
from load.simulator.pods.simulated_request import SimulatedRequest
from registry.domain.prompt_prefixes import KeptBlocks
from runtime.device.queue import (
    ASSUMED_DEADLINE_S,
    MAX_SEQUENCES,
    DeviceModel,
    DeviceQueue,
    Queued,
    QueuedRows,
)
from runtime.generation.limits import ProcessorSharing

# One model's continuous batch: its sequences, the requests waiting to join, iteration times.
#
# Iteration-level scheduling, Yu et al. 2022 ("Orca", OSDI), section 3, as in `runtime.generation`:
# between two iterations, complete sequences leave and requests join in order of arrival.
# `Iterations` decides when one runs.


@dataclass(eq=False, slots=True)
class _Sequence:
    request: SimulatedRequest
    last: int
    """Number of the iteration that generates its last token."""


class ContinuousBatch:
    """The requests of one model at one device; each row of a request is a sequence of its own."""

    def __init__(self, plan: ModelPlan) -> None:
        self.plan = plan
        self._max_rows = min(plan.spec.policy.max_batch_size or MAX_SEQUENCES, MAX_SEQUENCES)
        self._waiting: deque[SimulatedRequest] = deque()
        self._sequences: list[_Sequence] = []
        self._rows = 0
        self._iterations = 0
        self._kept = KeptBlocks()
        self._new_tokens = 0
        """Of the prompts that have joined, without those that were kept."""

    @property
    def is_empty(self) -> bool:
        """True if no request is in the batch or waits to join."""
        return not self._sequences and not self._waiting

    @property
    def can_grow(self) -> bool:
        """True if the first waiting request can join at the next iteration."""
        return bool(self._waiting) and (
            not self._sequences or self._rows + self._waiting[0].rows <= self._max_rows
        )

    def add(self, request: SimulatedRequest) -> None:
        self._waiting.append(request)

    def admit(self) -> tuple[int, list[SimulatedRequest]]:
        """Add waiting requests; returns their rows, and the requests that had already ended."""
        before, late = self._rows, []
        while self.can_grow:
            request = self._waiting.popleft()
            if request.is_over:
                late.append(request)
                continue
            last = self._iterations + max(1, request.output_size)
            self._sequences.append(_Sequence(request, last))
            self._rows += request.rows
            self._add_prompt(request)
        return self._rows - before, late

    def _add_prompt(self, request: SimulatedRequest) -> None:
        """Each joins with what earlier prompts have left of its own, but for one token."""
        prompt = request.arrival.prompt
        if prompt is not None:
            kept_tokens = self._kept.held(prompt.blocks) * BLOCK_TOKENS
            request.cached_tokens = min(kept_tokens, prompt.tokens - 1)
            self._kept.keep(prompt.blocks, self.plan.cache_tokens // BLOCK_TOKENS)
        self._new_tokens += request.input_size - request.cached_tokens

    def iteration_s(self, joined: int = 0) -> float:
        """Time of an iteration at speed 1, with the prompts of the rows that have just joined."""
        prompts_s = 0.0
        if joined:
            prompts_s = self.plan.infer_s(joined) + self._new_tokens * self.plan.prefill_s
            self._new_tokens = 0
        return prompts_s + self.plan.token_s(self._rows)

    def iterations_left(self) -> int:
        """Iterations until the first sequence has all its tokens."""
        return min(each.last for each in self._sequences) - self._iterations

    def deadline_s(self) -> float:
        """The earliest deadline in the batch; infinity if there is none."""
        deadlines_s = [each.request.arrival.deadline_s for each in self._sequences]
        return min((each for each in deadlines_s if each is not None), default=inf)

    def advance(
        self, iterations: int, now_s: float
    ) -> tuple[list[SimulatedRequest], list[SimulatedRequest]]:
        """Run iterations; returns the complete requests, and those that had already ended."""
        self._iterations += iterations
        done, over, stay = [], [], []
        for sequence in self._sequences:
            request = sequence.request
            if request.first_token_s < 0.0:
                request.first_token_s = now_s
            if sequence.last <= self._iterations:
                done.append(request)
            elif request.is_over:
                over.append(request)
            else:
                stay.append(sequence)
        if len(stay) < len(self._sequences):
            self._sequences = stay
            self._rows = sum(each.request.rows for each in stay)
        return done, over


@dataclass(eq=False, slots=True)
class QueuedInference(Queued):
    """A request that waits for an inference."""

    request: SimulatedRequest


@dataclass(eq=False, slots=True)
class QueuedIteration(Queued):
    """The next iteration of a batch."""

    batch: ContinuousBatch


@dataclass(frozen=True, slots=True, eq=False)
class IterationRun:
    """Iterations of batches in rotation, in their order, without a change between them."""

    jobs: tuple[QueuedIteration, ...]
    seconds: tuple[float, ...]
    """Time of one iteration of each job."""
    start_s: float
    count: int
    """Iterations of all batches together."""

    def end_s(self, count: int) -> float:
        """When the first `count` iterations end."""
        rounds, more = divmod(count, len(self.jobs))
        return self.start_s + rounds * sum(self.seconds) + sum(self.seconds[:more])

    def count_until(self, when_s: float) -> int:
        """The smallest number of iterations, at least one, that end at `when_s` or later."""
        round_s = sum(self.seconds)
        if when_s == inf or round_s == 0:
            return self.count
        count = max(1, int((when_s - self.start_s) / round_s) * len(self.jobs))
        while self.end_s(count) < when_s:
            count += 1
        return min(count, self.count)

    def first(self, count: int) -> IterationRun:
        return IterationRun(self.jobs, self.seconds, self.start_s, count)


class Iterations:
    """The continuous batches of one device, which it shares with inferences of other models."""

    def __init__(
        self,
        events: EventQueue,
        queue: DeviceQueue[QueuedInference | QueuedIteration],
        numbers: itertools.count[int],
        *,
        speed: float,
        jitter: float,
        rng: random.Random,
        done: Callable[[SimulatedRequest, float, float], None],
        late: Callable[[SimulatedRequest], None],
        freed: Callable[[], None],
    ) -> None:
        """`freed` is called when the device is free again, the others as for the device."""
        self._events = events
        self._queue = queue
        self._numbers = numbers
        self._speed = speed
        self._jitter = jitter
        self._rng = rng
        self._done = done
        self._late = late
        self._freed = freed
        self._batches: dict[str, ContinuousBatch] = {}
        self._queued = 0
        """Iterations in the queue."""
        self._run: IterationRun | None = None
        self._shared = ProcessorSharing(events.now)
        self._marks_s: dict[SimulatedRequest, float] = {}
        """The requests' marks in the shared time (`ProcessorSharing.enter`)."""

    def add(self, request: SimulatedRequest, model: DeviceModel) -> None:
        """Add the request to its model's batch at the next iteration with a free place."""
        batch = self._batches.get(model.key)
        if batch is None:
            batch = self._batches[model.key] = ContinuousBatch(request.plan)
        was_empty = batch.is_empty
        batch.add(request)
        self._marks_s[request] = self._shared.enter()
        if was_empty:
            self._queue_next(model, batch, self._events.now_s)
        if was_empty or batch.can_grow:
            self.interrupt()

    def forget(self, key: str) -> None:
        """The model is unloaded: nothing of earlier prompts is left."""
        self._batches.pop(key, None)

    def _queue_next(self, model: DeviceModel, batch: ContinuousBatch, now_s: float) -> None:
        waiting = QueuedRows(next(self._numbers), now_s + ASSUMED_DEADLINE_S, now_s)
        self._enqueue(QueuedIteration(model, waiting, batch))

    def _enqueue(self, job: QueuedIteration) -> None:
        self._queue.add(job)
        self._queued += 1

    def interrupt(self) -> None:
        """End the current run with the iteration that is under way: a request has arrived."""
        run = self._run
        if run is not None:
            count = run.count_until(nextafter(self._events.now_s, inf))  # the next has begun
            if count < run.count:
                self._start(run.first(count))

    # Runs

    def begin(self, job: QueuedIteration) -> bool:
        """Run the job, which was taken from the queue; False: no request is left in its batch."""
        self._queued -= 1
        batch = job.batch
        joined, late = batch.admit()
        self._drop(late)
        if batch.is_empty:
            return False
        jobs = (job,) if joined else (job, *self._take_others())
        seconds = [each.batch.iteration_s() for each in jobs]
        if joined:
            seconds = [batch.iteration_s(joined)]
        factor = exp(self._rng.gauss(0.0, self._jitter)) if self._jitter else 1.0
        run = IterationRun(
            jobs,
            tuple(each * factor / self._speed for each in seconds),
            self._events.now_s,
            1 if joined or self._queue else _iterations_until_finish(jobs),
        )
        deadline_s = min(each.batch.deadline_s() for each in jobs)
        self._start(run.first(run.count_until(deadline_s)))
        return True

    def _take_others(self) -> list[QueuedIteration]:
        """The other batches' iterations, most urgent first, if nothing else is queued or joins."""
        if not self._queued or len(self._queue) > self._queued:
            return []
        jobs = [each for each in self._queue.take_all() if isinstance(each, QueuedIteration)]
        if any(each.batch.can_grow for each in jobs):
            for each in jobs:
                self._queue.add(each)
            return []
        self._queued = 0
        return sorted(jobs, key=lambda each: each.queued.urgency)

    def _start(self, run: IterationRun) -> None:
        self._run = run
        self._events.at(run.end_s(run.count), self._ended, run)

    def _ended(self, run: IterationRun) -> None:
        if run is not self._run:  # it was shortened
            return
        self._run = None
        done: list[SimulatedRequest] = []
        over: list[SimulatedRequest] = []
        for place in range(len(run.jobs)):
            self._settle(run, place, done, over)
        for request in done:
            self._done(request, self._events.now_s - request.at_device_s, self._share_s(request))
        self._drop(over)
        self._freed()

    def _drop(self, requests: Sequence[SimulatedRequest]) -> None:
        for request in requests:
            self._share_s(request)
            self._late(request)

    def _share_s(self, request: SimulatedRequest) -> float:
        return self._shared.leave(self._marks_s.pop(request))

    def _settle(
        self,
        run: IterationRun,
        place: int,
        done: list[SimulatedRequest],
        over: list[SimulatedRequest],
    ) -> None:
        """Queue a batch's next iteration; `place` 0 is the batch that ran longest ago."""
        size = len(run.jobs)
        number = run.count - size + place  # of its last iteration in the run, from 0
        at = number % size
        job, batch = run.jobs[at], run.jobs[at].batch
        if number < 0:  # the run ended before its first iteration
            self._enqueue(job)
            return
        finished, left = batch.advance(number // size + 1, self._events.now_s)
        done += finished
        over += left
        if not batch.is_empty:
            self._queue_next(job.model, batch, run.end_s(number + 1))


def _iterations_until_finish(jobs: Sequence[QueuedIteration]) -> int:
    """Iterations of all batches together until the first request has all its tokens."""
    size = len(jobs)
    return min((job.batch.iterations_left() - 1) * size + at + 1 for at, job in enumerate(jobs))
