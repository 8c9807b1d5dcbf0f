"""The iterations of a device's continuous batches, as turns in the runtime's own queue.

As in `runtime.generation.transformers_engine`, every iteration is one job of the device: it stands
in line with other models' inferences, and the next one only when it has ended. Iterations between
which nothing changes are one event, which is cut short where something comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, nextafter
from typing import TYPE_CHECKING

from load.simulator.continuous import ContinuousBatch
from runtime.device.batch import QueuedRows
from runtime.device.queue import ASSUMED_DEADLINE_S, Queued
from runtime.generation.processor_sharing import ProcessorSharing

if TYPE_CHECKING:
    import itertools
    import random
    from collections.abc import Callable, Sequence

    from load.simulator.event_queue import EventQueue
    from load.simulator.simulated_request import SimulatedRequest
    from runtime.device.device_model import DeviceModel
    from runtime.device.queue import DeviceQueue


@dataclass(eq=False, slots=True)
class Request(Queued):
    """A request that waits for an inference."""

    flight: SimulatedRequest


@dataclass(eq=False, slots=True)
class Turn(Queued):
    """The next iteration of a batch."""

    batch: ContinuousBatch


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Iterations of batches that take turns, in their order, without a change."""

    turns: tuple[Turn, ...]
    seconds: tuple[float, ...]
    """Of one iteration of each."""
    begun_s: float
    count: int
    """Iterations of all together."""

    def end_s(self, count: int) -> float:
        """When so many iterations are over."""
        rounds, more = divmod(count, len(self.turns))
        return self.begun_s + rounds * sum(self.seconds) + sum(self.seconds[:more])

    def count_until(self, when_s: float) -> int:
        """The fewest iterations, one at least, that end then or later."""
        round_s = sum(self.seconds)
        if when_s == inf or round_s == 0:
            return self.count
        count = max(1, int((when_s - self.begun_s) / round_s) * len(self.turns))
        while self.end_s(count) < when_s:
            count += 1
        return min(count, self.count)

    def cut(self, count: int) -> Stretch:
        """The first iterations of it."""
        return Stretch(self.turns, self.seconds, self.begun_s, count)


class Iterations:
    """The continuous batches of one device, which it shares with inferences of other models."""

    __slots__ = (
        "_batches", "_done", "_freed", "_jitter", "_kernel", "_late", "_lined", "_marks_s",
        "_numbers", "_queue", "_rng", "_shared", "_speed", "_stretch",
    )  # fmt: skip

    def __init__(
        self,
        kernel: EventQueue,
        queue: DeviceQueue[Request | Turn],
        numbers: itertools.count[int],
        *,
        speed: float,
        jitter: float,
        rng: random.Random,
        done: Callable[[SimulatedRequest, float, float], None],
        late: Callable[[SimulatedRequest], None],
        freed: Callable[[], None],
    ) -> None:
        """`freed` hears when the device is free again; the others are as for the device."""
        self._kernel = kernel
        self._queue = queue
        self._numbers = numbers
        self._speed = speed
        self._jitter = jitter
        self._rng = rng
        self._done = done
        self._late = late
        self._freed = freed
        self._batches: dict[str, ContinuousBatch] = {}
        self._lined = 0
        """Turns in the queue."""
        self._stretch: Stretch | None = None
        self._shared = ProcessorSharing(kernel.now)
        self._marks_s: dict[SimulatedRequest, float] = {}
        """Of the shared time."""

    def add(self, flight: SimulatedRequest, device_model: DeviceModel) -> None:
        """Have the request join its model's batch at the next iteration that has room."""
        batch = self._batches.get(device_model.key)
        if batch is None:
            batch = self._batches[device_model.key] = ContinuousBatch(flight.plan)
        was_over = batch.is_over
        batch.add(flight)
        self._marks_s[flight] = self._shared.enter()
        if was_over:
            self._line_up(device_model, batch, self._kernel.now_s)
        if was_over or batch.may_grow:
            self.cut()

    def _line_up(self, device_model: DeviceModel, batch: ContinuousBatch, now_s: float) -> None:
        waiting = QueuedRows(next(self._numbers), now_s + ASSUMED_DEADLINE_S, now_s)
        self._enqueue(Turn(device_model, waiting, batch))

    def _enqueue(self, turn: Turn) -> None:
        self._queue.add(turn)
        self._lined += 1

    def cut(self) -> None:
        """Something came: what runs ends with the iteration that is under way."""
        stretch = self._stretch
        if stretch is not None:
            count = stretch.count_until(nextafter(self._kernel.now_s, inf))  # the next has begun
            if count < stretch.count:
                self._start(stretch.cut(count))

    # A turn

    def begin(self, turn: Turn) -> bool:
        """Run the turn, which was taken from the queue; False: nobody is left who wants it."""
        self._lined -= 1
        batch = turn.batch
        joined, late = batch.admit()
        self._lose(late)
        if batch.is_over:
            return False
        turns = (turn,) if joined else (turn, *self._take_others())
        seconds = [each.batch.iteration_s() for each in turns]
        if joined:
            seconds = [batch.iteration_s(joined)]
        factor = exp(self._rng.gauss(0.0, self._jitter)) if self._jitter else 1.0
        stretch = Stretch(
            turns,
            tuple(each * factor / self._speed for each in seconds),
            self._kernel.now_s,
            1 if joined or self._queue else _until_one_leaves(turns),
        )
        deadline_s = min(each.batch.deadline_s() for each in turns)
        self._start(stretch.cut(stretch.count_until(deadline_s)))
        return True

    def _take_others(self) -> list[Turn]:
        """All other turns, the most urgent first, where nothing else waits and nobody can join."""
        if not self._lined or len(self._queue) > self._lined:
            return []
        turns = [each for each in self._queue.take_all() if isinstance(each, Turn)]
        if any(each.batch.may_grow for each in turns):
            for each in turns:
                self._queue.add(each)
            return []
        self._lined = 0
        return sorted(turns, key=lambda each: each.queued.urgency)

    def _start(self, stretch: Stretch) -> None:
        self._stretch = stretch
        self._kernel.at(stretch.end_s(stretch.count), self._ended, stretch)

    def _ended(self, stretch: Stretch) -> None:
        if stretch is not self._stretch:  # it was cut
            return
        self._stretch = None
        done: list[SimulatedRequest] = []
        gone: list[SimulatedRequest] = []
        for place in range(len(stretch.turns)):
            self._settle(stretch, place, done, gone)
        for flight in done:
            self._done(flight, self._kernel.now_s - flight.at_device_s, self._share_s(flight))
        self._lose(gone)
        self._freed()

    def _lose(self, flights: Sequence[SimulatedRequest]) -> None:
        for flight in flights:
            self._share_s(flight)
            self._late(flight)

    def _share_s(self, flight: SimulatedRequest) -> float:
        return self._shared.leave(self._marks_s.pop(flight))

    def _settle(
        self,
        stretch: Stretch,
        place: int,
        done: list[SimulatedRequest],
        gone: list[SimulatedRequest],
    ) -> None:
        """Let a batch go on in the line, the one that ran longest ago first."""
        size = len(stretch.turns)
        number = stretch.count - size + place  # of its last iteration in the stretch, from 0
        at = number % size
        turn, batch = stretch.turns[at], stretch.turns[at].batch
        if number < 0:  # its turn did not come
            self._enqueue(turn)
            return
        made = number // size + 1
        finished, left = batch.advance(made)
        done += finished
        gone += left
        if not batch.is_over:
            self._line_up(turn.model, batch, stretch.end_s(number + 1))


def _until_one_leaves(turns: Sequence[Turn]) -> int:
    """Iterations of all together until the first request has all its tokens."""
    size = len(turns)
    return min((turn.batch.iterations_left() - 1) * size + at + 1 for at, turn in enumerate(turns))
