"""A simulated device: one inference at a time, batched by the runtime's own rules.

What goes together and what goes next is `runtime.device.batch` and `runtime.device.queue`; how long
it takes is the model's profile over the device's speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf
from typing import TYPE_CHECKING, Final

from registry.profile import Profile
from runtime.device.batch import Waiting
from runtime.device.batch_times import BatchTimes
from runtime.device.lane import Lane
from runtime.device.queue import DeviceQueue, Queued

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from load.simulator.cluster import ModelPlan
    from load.simulator.flight import Flight
    from load.simulator.kernel import Kernel

PATIENCE_S: Final = 60.0
"""As in `runtime.device.worker`: requests without a deadline are ordered as if it were so far
away."""


@dataclass(eq=False, slots=True)
class _Queued(Queued):
    flight: Flight


class SimulatedDevice:
    """One device. `done(flight, compute_s, share_s)` hears of the inferred, `late` of others."""

    __slots__ = (
        "_done", "_is_busy", "_jitter", "_kernel", "_lanes", "_late", "_look_s", "_number",
        "_queue", "_rng", "_seconds", "_speed", "_times",
    )  # fmt: skip

    def __init__(
        self,
        kernel: Kernel,
        *,
        speed: float,
        jitter: float,
        rng: random.Random,
        done: Callable[[Flight, float, float], None],
        late: Callable[[Flight], None],
    ) -> None:
        self._kernel = kernel
        self._speed = speed
        self._jitter = jitter
        self._rng = rng
        self._done = done
        self._late = late
        self._times = BatchTimes()
        self._queue: DeviceQueue[_Queued] = DeviceQueue(self._times)
        self._lanes: dict[str, Lane] = {}
        self._seconds: dict[tuple[str, int], float] = {}
        self._number = 0
        self._is_busy = False
        self._look_s = inf

    def infer(self, flight: Flight) -> None:
        """Run the request's inference when its turn comes."""
        if flight.is_over:
            self._late(flight)
            return
        now_s = self._kernel.now_s
        flight.at_device_s = now_s
        is_idle = not self._is_busy and not self._queue
        if is_idle and flight.plan.spec.policy.max_batch_wait_s == 0:
            self._run([flight])  # alone, and nothing to wait for: that is its batch
            return
        self._number += 1
        deadline_s = flight.arrival.deadline_s
        waiting = Waiting(
            sequence=self._number,
            due_s=now_s + PATIENCE_S if deadline_s is None else deadline_s,
            queued_s=now_s,
            deadline_s=deadline_s,
            rows=flight.rows,
            length=max(1, flight.input_size) if flight.plan.counts_tokens else 1,
            kind=flight.plan.spec.key if flight.plan.is_batched else None,
        )
        self._queue.add(_Queued(self._lane(flight.plan), waiting, flight))
        if not self._is_busy:
            self._next()

    def _lane(self, plan: ModelPlan) -> Lane:
        key = plan.spec.key
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key, key, policy=plan.spec.policy)
            self._times.adopt(Profile(key, "simulated", plan.infer))
        return lane

    def _next(self) -> None:
        now_s = self._kernel.now_s
        for each in self._queue.take_late(now_s):
            self._late(each.flight)
        taken, wake_s = self._queue.take_next(now_s)
        if taken:
            self._run([each.flight for each in taken])
        elif wake_s < self._look_s:
            self._look_s = wake_s
            self._kernel.at(wake_s, self._look)

    def _look(self, _: None) -> None:
        self._look_s = inf
        if not self._is_busy and self._queue:
            self._next()

    def _run(self, flights: list[Flight]) -> None:
        plan = flights[0].plan
        rows = flights[0].rows if len(flights) == 1 else sum(each.rows for each in flights)
        place = (plan.spec.key, rows)
        seconds = self._seconds.get(place)
        if seconds is None:
            seconds = self._seconds[place] = plan.infer_s(rows) / self._speed
        if plan.infer_per_token_s:
            tokens = max(each.output_size for each in flights)
            seconds += tokens * plan.infer_per_token_s / self._speed
        if self._jitter:
            seconds *= exp(self._rng.gauss(0.0, self._jitter))
        self._is_busy = True
        self._kernel.after(seconds, self._ended, (flights, seconds, rows))

    def _ended(self, batch: tuple[list[Flight], float, int]) -> None:
        flights, seconds, rows = batch
        self._is_busy = False
        for flight in flights:
            self._done(flight, seconds, seconds * flight.rows / rows)
        if self._queue and not self._is_busy:
            self._next()
