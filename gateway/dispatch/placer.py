"""Places requests: route and reserve, or queue and retry when the cluster changes.

Without tasks or I/O: a driver takes reservations, timers are real or virtual. A decision is made on
the local cluster state; the registry checks the reservation that follows, and a refusal leads to
another decision on newer state. A request that never waits does not enter the queue.
"""

from collections.abc import Callable
from typing import Final, Generic

from common.backoff import Backoff
from common.timers import Timers
from gateway.dispatch.admission import Admission, OnRouted
from gateway.dispatch.admission_queue import AdmissionQueue
from gateway.dispatch.pending_placement import P, PlacementDriver, QueueKey, planned_decision
from gateway.errors import Rejected
from gateway.routing.decision import Reason, Reject, SendTo, Wait
from gateway.routing.latency_model import record_placed
from gateway.routing.route_request import RoutingResult
from registry.domain.cluster import ClusterState
from registry.domain.demand import QueueStats
from registry.domain.model import ModelName
from registry.domain.pod_state import LoadMode, PodState

POLL_INTERVAL_S: Final = 0.25
"""Forecasts change with time alone, so queued requests are routed again without a change."""
_MAX_PASS_S: Final = 0.005
"""For which queued requests are routed at a time; then all others have as long. With 400 models
queued each change took 100 ms, and other tenants waited for seconds. Virtual time stands still."""
_FIRST: Final = 4
"""Heads that come first also where a pass goes on: those of the tenants whose turn it is, and then
as many that a warm pod may take, before new requests of other models take its slots."""
_MAX_DIRECT_TRIES: Final = 4
_ALTERNATIVES: Final = 2
_BACKOFF: Final = Backoff(0.002, 0.1)


class PlanRefused(Rejected):
    """The planned pod has no slot left, or is gone: the request is to be planned again."""


class Placer(Generic[P]):
    """Decides where requests go and when. `state` must not change during a call."""

    def __init__(
        self,
        state: ClusterState,
        driver: PlacementDriver[P],
        timers: Timers,
        now_s: Callable[[], float],
        on_routed: OnRouted = lambda *_: None,
        *,
        by_deadline: bool = True,
        may_load: bool = True,
        on_first: Callable[[], None] = lambda: None,
    ) -> None:
        """`by_deadline`, `on_first`: see `AdmissionQueue`; `may_load`: see `route_request`."""
        self._state = state
        self._driver = driver
        self._timers = timers
        self._now_s = now_s
        self._queue: AdmissionQueue[P] = AdmissionQueue(
            state, by_deadline=by_deadline, on_first=on_first
        )
        self.admission = Admission(state, self._queue, on_routed, may_load=may_load)
        self._is_changed = False
        """True if queued requests are to be routed again, before new ones."""
        self._is_polling = False
        self._is_paused = False
        self._passed: set[QueueKey | None] = set()
        """Heads that wait, by the pass that is paused."""
        self._is_missed = False
        """True if a change came since they were passed, and was tried with the first heads only."""

    @property
    def queued_total(self) -> int:
        return self._queue.size

    def queue_stats(self) -> dict[ModelName, QueueStats]:
        return self._queue.stats(self._now_s())

    def place(self, placement: P) -> Rejected | None:
        """Place a new request; returns why it is rejected, if it is.

        While it `is_pending` it waits, and the driver receives the result later.
        """
        now_s, admission = self._now_s(), self.admission
        if admission.records:
            error = admission.refused_like_another(placement, now_s)
            if error is not None:
                return self._refuse(placement, None, error)
        while placement.direct_tries < _MAX_DIRECT_TRIES:
            placement.direct_tries += 1
            self._dispatch_before(placement)
            result = admission.decide(placement, now_s)
            decision = result.decision
            if isinstance(decision, SendTo):
                placement.policy = result.policy
                if self._reserve(placement, decision, now_s) is not False:
                    return None
            elif isinstance(decision, Wait):
                placement.policy = result.policy
                return self._enqueue(placement, result)
            else:
                return self._refuse(placement, result, rejection_error(decision))
        return self._enqueue(placement, None)

    def place_planned(self, placement: P, pod: str) -> bool | None:
        """Place a new request at the pod that a plan has chosen; the driver's answer.

        Queued requests go first, and a tenant leaves slots to others as with every decision.
        """
        state, now_s = self._state, self._now_s()
        self._dispatch_before(placement)
        record = state.models.get(placement.arrival.model)
        decision = None if record is None else planned_decision(record.serving, pod, state)
        if record is None or decision is None:
            return False
        placement.is_planned, placement.spec = True, record.serving
        placement.direct_tries += 1
        if not self.admission.allows_planned(placement, decision, now_s):
            return False
        return self._reserve(placement, decision, now_s)

    def _reserve(self, placement: P, decision: SendTo, now_s: float) -> bool | None:
        """Reserve, and count the request's work at its pods from now on, unless it is refused."""
        placement.work = record_placed(
            decision,
            placement.spec.key,
            placement.arrival.deadline_s,
            self._state,
            now_s,
            placement.arrival.size_class,
        )
        is_granted = self._driver.reserve(placement, decision, self.on_reply)
        prompt = placement.arrival.prompt
        if prompt is not None and is_granted is not False:
            self._state.prefixes.record(placement.spec.key, decision.predict, prompt)
        if is_granted:
            placement.is_pending = False
        elif is_granted is False:
            placement.end_work()
        return is_granted

    def on_reply(self, placement: P, is_granted: bool) -> None:  # a callback
        """Continue after the registry's reply to a reservation; `reserve` had returned None."""
        if not is_granted:
            placement.end_work()
        if not placement.is_pending:
            if is_granted:
                self.release(placement)
        elif placement.queue_key is not None:
            self._on_queued_reply(placement, is_granted=is_granted)
        elif is_granted:
            placement.is_pending = False
            self._driver.on_placed(placement)
        elif placement.is_planned:
            placement.is_pending = False
            refused = PlanRefused(Reason.QUEUE_NO_SLOT, "the planned pod takes no request now")
            self._driver.on_rejected(placement, refused)
        elif (error := self.place(placement)) is not None:
            self._driver.on_rejected(placement, error)
        elif not placement.is_pending:
            self._driver.on_placed(placement)

    def alternatives(self, placement: P, decision: SendTo) -> list[PodState]:
        """Other pods that could take a placed request as it is now, the freest first."""
        if decision.mode is not LoadMode.WARM or decision.entry != decision.predict:
            return []
        free, only = self._state.free_warm(placement.spec.key), placement.only
        pods = free.first(_ALTERNATIVES + 1)
        if only is not None:
            pods = [pod for pod in self._state.warm(placement.spec.key) if pod.address in only]
        return [pod for pod in pods if pod.name != decision.entry][:_ALTERNATIVES]

    def cancel(self, placement: P) -> None:
        """Cancel a request that is not placed yet."""
        if placement.is_pending:
            self._end_pending(placement)

    def release(self, placement: P, *, is_cancelled: bool = False) -> None:
        """End a placed request; `is_cancelled`: see `PendingPlacement.end_work`."""
        placement.end_work(is_cancelled=is_cancelled)
        self._driver.release(placement)
        self.notify_change()

    def notify_change(self) -> None:
        """Route queued requests again, after the current callbacks: the cluster changed."""
        if self.admission.refused:
            self.admission.note_change(self._now_s())
        if not self._is_changed and self._queue.waiting and self._queue.size:
            self._is_changed = True
            if not self._is_paused:
                self._timers.after(0.0, self._dispatch_if_changed, None)

    def _refuse(self, placement: P, result: RoutingResult | None, error: Rejected) -> Rejected:
        """Reject a new request, and those like it until something changes."""
        if result is not None:
            self.admission.keep_refusal(placement, result, error, self._now_s())
        placement.is_pending = False
        return error

    # The queue

    def _enqueue(self, placement: P, result: RoutingResult | None) -> Rejected | None:
        """Returns why a request is rejected, if it is."""
        try:
            self._queue.add(placement, self._now_s())
        except Rejected as error:
            return self._refuse(placement, result, error)
        if result is not None:
            self._queue.record_wait(placement, result.decision.reason, placement.enqueued_s)
        timeout_s = self._queue.timeout_s(placement)
        placement.timeout = self._timers.after(timeout_s, self._on_timeout, placement)
        if gather_s := placement.spec.policy.max_load_wait_s:
            self._timers.after(gather_s, self._on_gathered, placement)
        self.notify_change()
        self._poll_later()
        return None

    def _on_gathered(self, placement: P) -> None:
        if placement.is_pending:
            self.notify_change()

    def _on_timeout(self, placement: P) -> None:
        if placement.is_pending:
            self._reject(placement, self._queue.timeout_error(placement))

    def _reject(self, placement: P, error: Rejected) -> None:
        self._end_pending(placement)
        self._driver.on_rejected(placement, error)

    def _end_pending(self, placement: P) -> None:
        placement.is_pending = False
        if placement.queue_key is not None:
            self.admission.note_change(self._now_s())
            self._queue.remove(placement)
            if placement.timeout is not None:
                placement.timeout.cancel()

    def _dispatch_before(self, placement: P) -> None:
        """Route queued requests before a new one, so that tenants take turns.

        While a pass is paused, those of its model in any case: new ones would take all slots.
        """
        self._dispatch_if_changed()
        while self._is_paused:
            head = self._queue.head_of(placement.arrival.model)
            if head is None or not self._try_dispatch(head):
                break

    def _dispatch_if_changed(self, _: None = None) -> None:
        if self._is_changed:
            self._dispatch_ready(only_if_free=True)

    def _poll_later(self) -> None:
        if not self._is_polling:
            self._is_polling = True
            self._timers.after(POLL_INTERVAL_S, self._poll, None)

    def _poll(self, _: None) -> None:
        self._is_polling = False
        if self._queue.size:
            self._poll_later()
            self._dispatch_ready(only_if_free=False)

    def _dispatch_ready(self, *, only_if_free: bool) -> None:
        """Route the head of every model's queue in fair order; repeat while one is dispatched.

        With `only_if_free` nothing is routed while no pod has a free slot. A request due for
        rejection is then rejected by the next poll.

        While a pass is paused only the first heads are routed, and those of free warm pods.
        """
        self._is_missed |= self._is_paused and self._is_changed
        self._is_changed = False
        if self._queue.size:
            self._driver.before_dispatch()
        begun_s, tried, waiting = self._now_s(), 0, list[QueueKey | None]()
        while not (only_if_free and self._is_full()):
            for placement in self._queue.heads(self._now_s()):
                if self._is_paused:
                    if tried >= _FIRST and not self._state.free_warm(placement.spec.key).first(1):
                        continue
                elif placement.queue_key in self._passed:
                    continue
                tried += 1
                is_dispatched = self._try_dispatch(placement)
                if not is_dispatched:
                    waiting.append(placement.queue_key)
                took_s = self._now_s() - begun_s
                if self._is_paused and tried == 2 * _FIRST:
                    return
                if took_s > _MAX_PASS_S and tried > _FIRST and not self._is_paused:
                    self._is_paused = True
                    self._passed.update(waiting[_FIRST:])
                    self._timers.after(took_s, self._resume, only_if_free)
                    return
                if is_dispatched:
                    break
            else:
                break
        if not self._is_paused:
            self._passed.clear()

    def _resume(self, only_if_free: bool) -> None:
        is_missed = self._is_missed or self._is_changed
        self._is_paused = self._is_missed = False
        self._dispatch_ready(only_if_free=only_if_free)
        if is_missed:
            self.notify_change()

    def _is_full(self) -> bool:
        return not any(pod.has_free_slot for pod in self._state.pods.values())

    def _try_dispatch(self, placement: P) -> bool:
        now_s = self._now_s()
        behind = self._queue.depth_of(placement.arrival.model) - 1  # it is the first of them
        decision = self.admission.decide_queued(placement, now_s, behind)
        if isinstance(decision, Wait):
            self._queue.record_wait(placement, decision.reason, now_s)
            return False
        if isinstance(decision, Reject):
            self._reject(placement, rejection_error(decision))
            return True
        self.admission.note_change(now_s)
        self._queue.take(placement, now_s)
        is_granted = self._reserve(placement, decision, now_s)
        if is_granted is not None:
            self._on_queued_reply(placement, is_granted=is_granted)
        return True

    def _on_queued_reply(self, placement: P, *, is_granted: bool) -> None:
        if is_granted:
            self._end_pending(placement)
            self._driver.on_placed(placement)
            return
        placement.refusals += 1  # the local state is outdated: wait for the update on its way
        self._timers.after(_BACKOFF.pause_s(placement.refusals), self._requeue, placement)

    def _requeue(self, placement: P) -> None:
        if placement.is_pending:
            self._queue.requeue(placement)
            self.notify_change()
            self._poll_later()


def rejection_error(decision: Reject) -> Rejected:
    return Rejected(
        decision.reason,
        decision.message,
        retry_after_s=decision.retry_after_s,
        http_status=decision.http_status,
    )
