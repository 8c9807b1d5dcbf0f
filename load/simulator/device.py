"""A simulated device: one inference at a time, batched by the runtime's own rules.

What goes together and what goes next is `runtime.device.batch` and `runtime.device.queue`; how long
it takes is the model's profile over the device's speed.
"""

from __future__ import annotations

from itertools import count
from math import exp, inf
from typing import TYPE_CHECKING

from load.simulator.iterations import Iterations, Request, Turn
from registry.domain.profile import Profile
from runtime.device.batch import QueuedRows
from runtime.device.batch_times import BatchTimes
from runtime.device.device_model import DeviceModel
from runtime.device.queue import ASSUMED_DEADLINE_S, DeviceQueue

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from load.simulator.cluster.plan import ModelPlan
    from load.simulator.event_queue import EventQueue
    from load.simulator.simulated_request import SimulatedRequest


class SimulatedDevice:
    """One device. `done(flight, infer_s, share_s)` hears of the inferred, `late` of others."""

    __slots__ = (
        "_device_models", "_done", "_end", "_is_busy", "_iterations", "_jitter", "_kernel",
        "_late", "_look_s", "_numbers", "_queue", "_rng", "_seconds", "_speed", "_times",
    )  # fmt: skip

    def __init__(
        self,
        kernel: EventQueue,
        *,
        speed: float,
        jitter: float,
        rng: random.Random,
        done: Callable[[SimulatedRequest, float, float], None],
        late: Callable[[SimulatedRequest], None],
    ) -> None:
        self._kernel = kernel
        self._speed = speed
        self._jitter = jitter
        self._rng = rng
        self._done = done
        self._late = late
        self._times = BatchTimes()
        self._queue: DeviceQueue[Request | Turn] = DeviceQueue(self._times)
        self._device_models: dict[str, DeviceModel] = {}
        self._seconds: dict[tuple[str, int], float] = {}
        self._numbers = count(1)
        self._is_busy = False
        self._look_s = inf
        self._end: Callable[[tuple[list[SimulatedRequest], float, int]], None] = self._ended
        """Bound once: it is set for every batch."""
        self._iterations = Iterations(
            kernel, self._queue, self._numbers,
            speed=speed, jitter=jitter, rng=rng, done=done, late=late, freed=self._freed,
        )  # fmt: skip

    def infer(self, flight: SimulatedRequest) -> None:
        """Run the request's inference when its turn comes."""
        if flight.is_over:
            self._late(flight)
            return
        now_s = self._kernel.now_s
        flight.at_device_s = now_s
        if flight.plan.is_continuous:
            self._iterations.add(flight, self._device_model(flight.plan))
            if not self._is_busy:
                self._next()
            return
        is_idle = not self._is_busy and not self._queue
        if is_idle and flight.plan.spec.policy.max_batch_wait_s == 0:
            self._run([flight])  # alone, and nothing to wait for: that is its batch
            return
        deadline_s = flight.arrival.deadline_s
        waiting = QueuedRows(
            sequence=next(self._numbers),
            due_s=now_s + ASSUMED_DEADLINE_S if deadline_s is None else deadline_s,
            enqueued_at_s=now_s,
            deadline_s=deadline_s,
            rows=flight.rows,
            tokens_per_row=max(1, flight.input_size) if flight.plan.counts_tokens else 1,
            batch_key=flight.plan.spec.key if flight.plan.is_batched else None,
        )
        self._queue.add(Request(self._device_model(flight.plan), waiting, flight))
        if self._is_busy:
            self._iterations.cut()
        else:
            self._next()

    def _device_model(self, plan: ModelPlan) -> DeviceModel:
        key = plan.spec.key
        device_model = self._device_models.get(key)
        if device_model is None:
            device_model = self._device_models[key] = DeviceModel(key, key, policy=plan.spec.policy)
            self._times.adopt(Profile(key, "simulated", plan.infer))
        return device_model

    def _next(self) -> None:
        now_s = self._kernel.now_s
        for each in self._queue.take_late(now_s):
            if isinstance(each, Request):  # turns have no deadline
                self._late(each.flight)
        taken, wake_s = self._queue.take_next(now_s)
        if taken and isinstance(taken[0], Turn):
            self._take_turn(taken[0])
        elif taken:
            self._run([each.flight for each in taken if isinstance(each, Request)])
        elif wake_s < self._look_s:
            self._look_s = wake_s
            self._kernel.at(wake_s, self._look)

    def _take_turn(self, turn: Turn) -> None:
        self._is_busy = True
        if not self._iterations.begin(turn):
            self._freed()

    def _look(self, _: None) -> None:
        self._look_s = inf
        if not self._is_busy and self._queue:
            self._next()

    def _run(self, flights: list[SimulatedRequest]) -> None:
        plan = flights[0].plan
        rows = flights[0].rows if len(flights) == 1 else sum(each.rows for each in flights)
        place = (plan.spec.key, rows)
        seconds = self._seconds.get(place)
        if seconds is None:
            seconds = self._seconds[place] = plan.infer_s(rows) / self._speed
        if plan.infer_per_token:
            tokens = max(each.output_size for each in flights)
            seconds += tokens * plan.token_s(rows) / self._speed
        if self._jitter:
            seconds *= exp(self._rng.gauss(0.0, self._jitter))
        self._is_busy = True
        self._kernel.after(seconds, self._end, (flights, seconds, rows))

    def _ended(self, batch: tuple[list[SimulatedRequest], float, int]) -> None:
        flights, seconds, rows = batch
        self._is_busy = False
        for flight in flights:
            self._done(flight, seconds, seconds * flight.rows / rows)
        if self._queue and not self._is_busy:
            self._next()

    def _freed(self) -> None:
        self._is_busy = False
        if self._queue:
            self._next()
