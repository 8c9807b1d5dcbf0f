"""Queued requests: admission, order, timeouts and statistics.

Pure bookkeeping around the fair queue, with the clock passed in; the placer routes the requests.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, Generic

from gateway.dispatch.pending_placement import (
    FairQueue,
    P,
    QueueKey,
    dispatch_order,
    is_ready,
    queue_key,
)
from gateway.errors import Rejected
from gateway.routing.decision import Reason
from gateway.routing.route_request import IncomingRequest
from registry.domain.cluster import ClusterState
from registry.domain.demand import QueueStats
from registry.domain.model import ModelName, Tier

STARVED_SHARE: Final = 0.6
"""Share of the time from arrival to deadline after which a queued request counts as starved
(Blinowski et al. 2024, 4.2.3)."""
LATE_DEADLINES: Final = 100.0
"""How many times the time from arrival to its soft deadline a request may wait before it no longer
counts as late, within `STARVED_SHARE` of its queue timeout. Simulated (`warsaw`, 10 minutes, seeds
6 to 8): with 10, 30, 100 and no such end are 12.9, 5.7, 3.1 and 3.2 % missed, and the longest
request takes 21, 60, 88 and 93 s."""
_EMPTY: Final = QueueStats(0, 0, inf)
_NO_LOAD: Final = ("", -inf)


@dataclass(eq=False)
class AdmissionQueue(Generic[P]):
    """Requests without a pod, by model. `state` must not change during a call."""

    state: ClusterState
    by_deadline: bool = True
    """Without it a queue is in order of arrival, also of late requests."""
    on_first: Callable[[], None] = lambda: None
    """Called when a request is queued while no others are."""

    def __post_init__(self) -> None:
        self._fair_queue = FairQueue()
        self.waiting: dict[QueueKey, P] = {}
        """All of them. Without any, all numbers are 0, which callers need not ask for."""
        self._counted: dict[QueueKey, str] = {}
        """The model under which a request counts in `state.queue_depths`."""
        self._moves: list[tuple[float, QueueKey]] = []
        """A heap: when requests begin or cease to be late; also some that have left."""
        self._progress_s: dict[ModelName, float] = {}
        """Time at which a model's queue last became shorter, or began; models with a queue only."""
        self._awaited_tiers: dict[ModelName, tuple[str, float]] = {}
        """The load that a model's queue last waited for: its tier, and when that was last seen."""

    @property
    def size(self) -> int:
        """Number of requests that can be dispatched, without those with a pending reservation."""
        return self._fair_queue.size

    def depth_of(self, model: ModelName) -> int:
        """Queued requests of the model, without those with a pending reservation."""
        return len(self._fair_queue.of(model.namespace, model.name))

    def ahead_of(self, request: IncomingRequest) -> int:
        """Queued requests of the model that would be dispatched before this new one."""
        record = self.state.models.get(request.model)
        priority = 0 if record is None else record.serving.policy.priority
        queue = self._fair_queue.of(request.model.namespace, request.model.name)
        return bisect_left(queue, self._key(request, priority))

    def _key(self, request: IncomingRequest, priority: int) -> QueueKey:
        return queue_key(
            tenant=request.model.namespace,
            model=request.model.name,
            sequence=request.sequence,
            priority=priority,
            deadline_s=due_s(request) if self.by_deadline else None,
        )

    def stalled_s(self, model: ModelName, now_s: float) -> float:
        """Time since the model's queue last became shorter; 0 if it has none."""
        return now_s - self._progress_s.get(model, now_s) if self._progress_s else 0.0

    def stats(self, now_s: float) -> dict[ModelName, QueueStats]:
        """By model; requests past `STARVED_SHARE` of their time count as starved."""
        found: dict[ModelName, QueueStats] = {}
        for placement in self.waiting.values():
            request = placement.arrival
            known = found.get(request.model, _EMPTY)
            found[request.model] = QueueStats(
                known.requests + 1,
                known.starved + is_starved(request.arrival_s, due_s(request), now_s),
                min(known.oldest_s, request.arrival_s),
            )
        return found

    # Joining and leaving

    def add(self, placement: P, now_s: float) -> None:
        """Queue a routed request. Raises Rejected: the queue is full."""
        request, spec = placement.arrival, placement.spec
        depth = self.depth_of(request.model)
        if depth >= spec.policy.queue_depth:
            hold_s = self.state.measured(spec.key).infer.seconds
            raise Rejected(
                Reason.QUEUE_FULL,
                f"{depth} requests of {request.model} are queued; queue-depth is "
                f"{spec.policy.queue_depth}",
                retry_after_s=max(1.0, depth * hold_s / max(1, len(self.state.pods))),
            )
        placement.queue_key = key = self._key(request, spec.policy.priority)
        placement.refusals = 0
        placement.enqueued_s = now_s
        placement.wait_reason = Reason.QUEUE_NO_SLOT
        if not self.waiting:
            self.on_first()
        self.waiting[key] = placement
        self._progress_s.setdefault(request.model, now_s)
        self._enter(placement, key)
        if (late_s := self._latest_start_s(placement)) is not None:
            heappush(self._moves, (late_s, key))
            if len(self._moves) > 2 * len(self.waiting):  # most have left
                self._moves = [each for each in self._moves if each[1] in self.waiting]
                heapify(self._moves)

    def record_wait(self, placement: P, reason: Reason, now_s: float) -> None:
        """Record why a request waits: one that waits for a load in progress is a cold start."""
        placement.wait_reason = reason
        if reason is Reason.QUEUE_WARMING:
            if placement.awaited_tier is None:
                placement.awaited_tier = self._loading_tier(placement.spec.key)
            self._awaited_tiers[placement.arrival.model] = placement.awaited_tier, now_s

    def take(self, placement: P, now_s: float) -> None:
        """Dispatch a request: its model's queue makes progress, its tenant's turn ends.

        A request that was in the queue while others waited for a load has waited for it, too, also
        if it was never the first: it is a cold start.
        """
        if placement.queue_key is not None:
            tier, seen_s = self._awaited_tiers.get(placement.arrival.model, _NO_LOAD)
            if placement.awaited_tier is None and placement.enqueued_s <= seen_s:
                placement.awaited_tier = tier
            self._leave(placement.queue_key)
            infer_s = self.state.measured(placement.spec.key).infer.seconds
            self._fair_queue.end_turn(placement.queue_key.tenant, infer_s, now_s)
            self._progress_s[placement.arrival.model] = now_s

    def requeue(self, placement: P) -> None:
        """Return a dispatched request whose reservation was refused to its old position."""
        if placement.queue_key is not None:
            self._enter(placement, placement.queue_key)

    def remove(self, placement: P) -> None:
        """Remove a request, dispatched or not."""
        key = placement.queue_key
        if key is None:
            return
        self._leave(key)
        del self.waiting[key]
        if not self._fair_queue.of(key.tenant, key.model):
            self._progress_s.pop(placement.arrival.model, None)
            self._awaited_tiers.pop(placement.arrival.model, None)

    def _enter(self, placement: P, key: QueueKey) -> None:
        self._fair_queue.add(key)
        model, depths = placement.spec.key, self.state.queue_depths
        self._counted[key] = model
        depths[model] = depths.get(model, 0) + 1

    def _leave(self, key: QueueKey) -> None:
        if self._fair_queue.remove(key):
            model, depths = self._counted.pop(key), self.state.queue_depths
            depths[model] -= 1
            if not depths[model]:
                del depths[model]

    def timeout_s(self, placement: P) -> float:
        """Longest time in the queue for a request enqueued just now."""
        deadline_s = placement.arrival.deadline_s
        left_s = inf if deadline_s is None else deadline_s - placement.enqueued_s
        return max(0.0, min(placement.spec.policy.queue_timeout_s, left_s))

    def timeout_error(self, placement: P) -> Rejected:
        """The error of a request past `timeout_s`: deadline or queue timeout, which was nearer.

        Not by the current time: the clock may have been set back, and timers fire early.
        """
        deadline_s = placement.arrival.deadline_s
        queue_timeout_s = placement.spec.policy.queue_timeout_s
        if deadline_s is not None and deadline_s - placement.enqueued_s <= queue_timeout_s:
            return Rejected(
                Reason.DEADLINE,
                f"the deadline passed in the queue ({placement.wait_reason}) before a pod accepted "
                "the request",
            )
        return Rejected(
            Reason.QUEUE_TIMEOUT,
            f"no pod accepted the request within queue-timeout {queue_timeout_s:g} s "
            f"({placement.wait_reason}); {len(self.state.pods)} pods",
        )

    # The order of dispatch

    def heads(self, now_s: float) -> list[P]:
        """The first request of every model in the order of `dispatch_order`."""
        self._move_late(now_s)
        ordered = dispatch_order(
            self._fair_queue.heads(now_s), lambda key: self._is_ready(key, now_s)
        )
        return [self.waiting[key] for key in ordered]

    def _latest_start_s(self, placement: P) -> float | None:
        """When the request can no longer be in time; None: never, or then it is rejected."""
        request = placement.arrival
        if not self.by_deadline or request.due_s is None or request.deadline_s is not None:
            return None
        measured = self.state.measured(placement.spec.key)
        hold_s = measured.stages_of(request.size_class).hold_s if measured.get("infer") else 0.0
        return request.due_s - hold_s

    def _move_late(self, now_s: float) -> None:
        """Move late requests behind those that can be in time, and back in the end: O(log n)."""
        while self._moves and self._moves[0][0] < now_s:
            _, key = heappop(self._moves)
            placement = self.waiting.pop(key, None)
            if placement is None:
                continue
            moved = placement.queue_key = key._replace(is_late=not key.is_late)
            self.waiting[moved] = placement
            if key in self._counted:  # else its reservation is pending
                self._counted[moved] = self._counted.pop(key)
                self._fair_queue.add(moved)  # first, so that its tenant keeps its turn
                self._fair_queue.remove(key)
            if moved.is_late:
                arrival_s, timeout_s = placement.arrival.arrival_s, self.timeout_s(placement)
                until_s = min(
                    arrival_s + LATE_DEADLINES * (key.deadline_s - arrival_s),
                    placement.enqueued_s + STARVED_SHARE * timeout_s,
                )
                heappush(self._moves, (until_s, moved))

    def head_of(self, model: ModelName) -> P | None:
        """The first request of a model, without those with a pending reservation."""
        queue = self._fair_queue.of(model.namespace, model.name)
        return self.waiting[queue[0]] if queue else None

    def by_model(self) -> Iterator[Sequence[QueueKey]]:
        """The queue of every model, in its order."""
        return self._fair_queue.by_model()

    def _is_ready(self, key: QueueKey, now_s: float) -> bool:
        placement = self.waiting[key]
        model = placement.spec.key
        if self.state.warm(model):
            return True
        return is_ready(
            waited_s=now_s - placement.enqueued_s,
            left_s=key.deadline_s - now_s,
            load_s=self.state.measured(model).load_from(Tier.REMOTE, None).seconds,
        )

    def _loading_tier(self, key: str) -> str:
        for residency in self.state.holders(key).values():
            if residency.loading_from is not None:
                return str(residency.loading_from)
        return "remote"


def due_s(request: IncomingRequest) -> float:
    """A request's hard or soft deadline; infinity without one."""
    at_s = request.due_s if request.deadline_s is None else request.deadline_s
    return inf if at_s is None else at_s


def is_starved(arrival_s: float, due_s: float, now_s: float) -> bool:
    """Whether a queued request is past `STARVED_SHARE` of its time."""
    return now_s - arrival_s > STARVED_SHARE * (due_s - arrival_s)
