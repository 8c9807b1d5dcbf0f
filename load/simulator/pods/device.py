"""A simulated device: one inference at a time, batched by the runtime's own rules.

Batches and their order are decided by `runtime.device.queue` and `runtime.device.queue`;
times are those of the model's profile divided by the device's speed.
"""

import random
from collections.abc import Callable
from itertools import count
from math import exp, inf
from typing import Final

from autoscaler.placement.prediction import share_factor
from load.simulator.cluster.plan import ModelPlan, PodPlan
from load.simulator.event_queue import EventQueue
from load.simulator.pods.iterations import Iterations, QueuedInference, QueuedIteration
from load.simulator.pods.shared_processors import GpuBatch, SharedCores, SharedGpu
from load.simulator.pods.simulated_request import SimulatedRequest
from registry.domain.pod import Profile
from runtime.device.batch_times import BatchTimes
from runtime.device.queue import ASSUMED_DEADLINE_S, DeviceModel, DeviceQueue, QueuedRows

_WHOLE_PCT: Final = 100.0


class SimulatedDevice:
    """One device.

    `done(request, infer_s, share_s)` is called after an inference, `late(request)` for a request
    whose deadline passed before.
    """

    def __init__(
        self,
        events: EventQueue,
        *,
        speed: float,
        jitter: float,
        rng: random.Random,
        done: Callable[[SimulatedRequest, float, float], None],
        late: Callable[[SimulatedRequest], None],
        plan: PodPlan | None = None,
        gpu: SharedGpu | None = None,
        cores: SharedCores | None = None,
    ) -> None:
        """With `gpu` other pods compute on the device, too; `plan` has the share and batch cap."""
        self._plan = plan
        self._gpu = gpu
        self._cores = cores
        self._events = events
        self._speed = speed
        self._jitter = jitter
        self._rng = rng
        self._done = done
        self._late = late
        self._times = BatchTimes()
        self._queue: DeviceQueue[QueuedInference | QueuedIteration] = DeviceQueue(self._times)
        self._device_models: dict[str, DeviceModel] = {}
        self._seconds: dict[tuple[str, int], float] = {}
        """Time of an inference, by model key and rows."""
        self._numbers = count(1)
        self._is_busy = False
        self._poll_s = inf
        self._end: Callable[[tuple[list[SimulatedRequest], float, int]], None] = self._ended
        """Bound once, since every batch uses it."""
        self._iterations = Iterations(
            events,
            self._queue,
            self._numbers,
            speed=speed,
            jitter=jitter,
            rng=rng,
            done=done,
            late=late,
            freed=self._freed,
        )
        self.forget: Callable[[str], None] = self._iterations.forget

    def infer(self, request: SimulatedRequest) -> None:
        """Queue the request's inference."""
        if request.is_over:
            self._late(request)
            return
        now_s = self._events.now_s
        request.at_device_s = now_s
        if request.plan.is_continuous:
            self._iterations.add(request, self._device_model(request.plan))
            if not self._is_busy:
                self._next()
            return
        is_idle = not self._is_busy and not self._queue
        if is_idle and request.plan.spec.policy.max_batch_wait_s == 0:
            self._run([request])  # nothing to wait for: a batch of one
            return
        deadline_s = request.arrival.deadline_s
        waiting = QueuedRows(
            sequence=next(self._numbers),
            due_s=now_s + ASSUMED_DEADLINE_S if deadline_s is None else deadline_s,
            enqueued_at_s=now_s,
            deadline_s=deadline_s,
            rows=request.rows,
            tokens_per_row=max(1, request.input_size) if request.plan.counts_tokens else 1,
            batch_key=request.plan.spec.key if request.plan.is_batched else None,
        )
        self._queue.add(QueuedInference(self._device_model(request.plan), waiting, request))
        if self._is_busy:
            self._iterations.interrupt()
        else:
            self._next()

    def _device_model(self, plan: ModelPlan) -> DeviceModel:
        key = plan.spec.key
        model = self._device_models.get(key)
        if model is None:
            model = self._device_models[key] = DeviceModel(key, key, policy=plan.spec.policy)
            self._times.use_profile(Profile(key, "simulated", plan.infer))
            if self._plan is not None and self._plan.batch_cap is not None:
                self._times.planned_rows = {key: self._plan.batch_cap}
        return model

    def _next(self) -> None:
        now_s = self._events.now_s
        for each in self._queue.take_expired(now_s):
            if isinstance(each, QueuedInference):  # iterations have no deadline
                self._late(each.request)
        taken, wake_s = self._queue.take_next(now_s)
        if taken and isinstance(taken[0], QueuedIteration):
            self._is_busy = True
            if not self._iterations.begin(taken[0]):
                self._freed()
        elif taken:
            self._run([each.request for each in taken if isinstance(each, QueuedInference)])
        elif wake_s < self._poll_s:
            self._poll_s = wake_s
            self._events.at(wake_s, self._poll)

    def _poll(self, _: None) -> None:
        self._poll_s = inf
        if not self._is_busy and self._queue:
            self._next()

    def _run(self, requests: list[SimulatedRequest]) -> None:
        plan = requests[0].plan
        rows = requests[0].rows if len(requests) == 1 else sum(each.rows for each in requests)
        key = (plan.spec.key, rows)
        seconds = self._seconds.get(key)
        if seconds is None:
            seconds = self._seconds[key] = self._alone_s(plan, rows)
        if plan.infer_per_token:
            tokens = max(each.output_size for each in requests)
            seconds += tokens * plan.token_s(rows) / self._speed
        if self._jitter:
            seconds *= exp(self._rng.gauss(0.0, self._jitter))
        self._is_busy = True
        if self._gpu is None:
            if self._cores is None:
                self._events.after(seconds, self._end, (requests, seconds, rows))
            else:
                begun = (requests, self._events.now_s, rows)
                self._cores.run(seconds, self._ended_on_cores, begun, plan.cores(rows))
            return
        share_pct = self._plan.share_pct if self._plan is not None else None
        model, used_pct = str(plan.spec.name), min(plan.used_pct(rows), share_pct or _WHOLE_PCT)
        self._gpu.run(
            GpuBatch(
                model, rows, used_pct, seconds, lambda took_s: self._end((requests, took_s, rows))
            )
        )

    def _ended_on_cores(self, begun: tuple[list[SimulatedRequest], float, int]) -> None:
        requests, begun_s, rows = begun
        self._ended((requests, self._events.now_s - begun_s, rows))

    def _alone_s(self, plan: ModelPlan, rows: int) -> float:
        """Time of a batch without neighbours, slower where the share is below its need."""
        share_pct = self._plan.share_pct if self._plan is not None else None
        return plan.infer_s(rows) * share_factor(plan.used_pct(rows), share_pct) / self._speed

    def _ended(self, batch: tuple[list[SimulatedRequest], float, int]) -> None:
        requests, seconds, rows = batch
        self._is_busy = False
        for request in requests:
            self._done(request, seconds, seconds * request.rows / rows)
        if self._queue and not self._is_busy:
            self._next()

    def _freed(self) -> None:
        self._is_busy = False
        if self._queue:
            self._next()
