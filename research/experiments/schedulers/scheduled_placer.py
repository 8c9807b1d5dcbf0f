"""A placer in which one scheduler starts every inference, by a rule of `inference_rules`.

Every request joins the queue; tenants take no turns. Requests start no loads: whoever plans loads
does so in `PlacementDriver.before_dispatch`. A machine runs one model at a time, its further slots
take requests of the same batch.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any

from common.timers import Timers
from gateway.dispatch.admission_queue import due_s, is_starved
from gateway.dispatch.pending_placement import P, PlacementDriver, QueueKey
from gateway.dispatch.placer import Placer, rejection_error
from gateway.errors import Rejected
from gateway.routing.decision import Reason, Reject, SendTo
from registry.domain.cluster import ClusterState
from registry.domain.model import Task
from registry.domain.pod_state import LoadMode
from research.experiments.schedulers.inference_rules import (
    InferenceRule,
    Machine,
    ModelQueue,
    QueuedRequest,
)

_deadline = attrgetter("deadline_s")


class ScheduledPlacer(Placer[P]):
    """Starts inferences by a rule. `state` must not change during a call."""

    def __init__(
        self,
        state: ClusterState,
        driver: PlacementDriver[P],
        timers: Timers,
        now_s: Callable[[], float],
        *,
        rule: InferenceRule,
        by_deadline: bool,
        is_serial: bool,
        is_loading: Callable[[str], bool],
    ) -> None:
        """With `is_serial` a pod serves nothing while it loads a model.

        Gujarati et al. 2020: one action per worker.
        """
        super().__init__(state, driver, timers, now_s, by_deadline=by_deadline, may_load=False)
        self._rule = rule
        self._is_serial = is_serial
        self._is_loading = is_loading
        self._last = ""
        """The machine of the last inference."""
        self._model_at: dict[str, str] = {}
        """By machine: key of the model that it ran last."""

    def place(self, placement: P) -> Rejected | None:
        result = self.admission.decide(placement, self._now_s())
        if isinstance(result.decision, Reject):
            return self._refuse(placement, None, rejection_error(result.decision))
        placement.policy = result.policy
        return self._enqueue(placement, None)

    def _dispatch_ready(self, *, only_if_free: bool) -> None:
        """Start what the rule says; without `only_if_free`, first reject what can never start."""
        self._is_changed = False
        if not self._queue.size:
            return
        self._driver.before_dispatch()
        if not only_if_free:
            self._reject_unservable()
        machines = self._machines()
        if not machines:
            return
        names = frozenset(each.name for each in machines)
        count = sum(each.free_slots for each in machines)
        queued: dict[str, Sequence[P]] = {}
        queues: list[ModelQueue] = []
        for keys in self._queue.by_model():
            head = self._queue.waiting[keys[0]]
            key = head.spec.key
            holders = names.intersection([pod.name for pod in self._state.warm(key)])
            if holders:  # others cannot start now, and most queues are of those
                queued[key] = found = self._first_requests(keys, key, count)
                queues.append(self._model_queue(key, found, holders))
        if not queues:
            return
        # By model and machine, since starting one inference changes the queues.
        inferences = self._rule(queues, machines, self._now_s(), self._last)
        for key, first, count, machine in inferences:
            self._last = machine
            self._model_at[machine] = key
            for placement in queued[key][first : first + count]:
                self._start(placement, machine)

    def _start(self, placement: P, machine: str) -> None:
        decision = SendTo(machine, machine, LoadMode.WARM, Reason.WARM)
        self._queue.take(placement, self._now_s())
        is_granted = self._driver.reserve(placement, decision, self.on_reply)
        if is_granted is not None:
            self._on_queued_reply(placement, is_granted=is_granted)

    def _reject_unservable(self) -> None:
        for keys in list(self._queue.by_model()):
            placement = self._queue.waiting[keys[0]]
            decision = self.admission.decide_queued(placement, self._now_s())
            if isinstance(decision, Reject):
                self._reject(placement, rejection_error(decision))

    def _machines(self) -> list[Machine]:
        return [
            Machine(
                pod.name,
                pod.slots - pod.slots_busy,
                frozenset((self._model_at[pod.name],)) if pod.slots_busy else frozenset(),
            )
            for pod in self._state.pods.values()
            if pod.has_free_slot and not (self._is_serial and self._is_loading(pod.name))
        ]

    def _first_requests(self, keys: Sequence[QueueKey], key: str, count: int) -> Sequence[P]:
        """The first requests of a queue, the first starved, and the first that can be in time.

        Rules start `count` requests at most, and queues of thousands would cost more than that.
        """
        waiting = self._queue.waiting
        if len(keys) <= count:
            return [waiting[each] for each in keys]
        now_s = self._now_s()
        arrivals = enumerate(waiting[each].arrival for each in keys)
        starved = (at for at, each in arrivals if is_starved(each.arrival_s, due_s(each), now_s))
        in_time_s = now_s + self._state.measured(key).infer.seconds
        in_time = bisect_left(keys, in_time_s, key=_deadline)
        last = min(in_time + count, len(keys))
        positions = {*range(count), *islice(starved, count), *range(in_time, last)}
        return [waiting[keys[at]] for at in sorted(positions)]

    def _model_queue(
        self, key: str, placements: Sequence[P], machines: frozenset[str]
    ) -> ModelQueue:
        share_s = self._state.measured(key).share.seconds
        return ModelQueue(
            key,
            tuple([_queued_request(each) for each in placements]),
            machines,
            lambda requests: requests * share_s,
            is_continuous=placements[0].spec.task is Task.TEXT_GENERATION,
        )


def _queued_request(placement: Any) -> QueuedRequest:
    return QueuedRequest(placement.arrival.arrival_s, due_s(placement.arrival))
