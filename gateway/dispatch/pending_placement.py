"""Requests that are being placed: the fair queue, decisions for a given pod, the interface."""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Final, Generic, NamedTuple, TypeVar

from common.timers import Timer
from gateway.errors import Rejected
from gateway.routing.cold_start import MAX_LOADS_WAITED
from gateway.routing.decision import Decision, Reason, Reject, SendTo, Wait
from gateway.routing.route_request import IncomingRequest
from registry.domain.cluster import ClusterState
from registry.domain.demand import TenantUsage
from registry.domain.model import ModelSpec
from registry.domain.pod_state import LoadMode, PlacedRequest

URGENT_LOADS: Final = 2.0
"""Loads before its deadline at which a head no longer waits for requests of warm models; with less
time left than one load it would be late all the same."""


class QueueKey(NamedTuple):
    """A queued request. Order within a model: priority, lateness, deadline, arrival.

    A tuple, since heads are sorted at every change: a dataclass's comparisons cost ten times that.
    """

    negative_priority: int
    is_late: bool
    """It can no longer be in time, and gives way to those that can."""
    deadline_s: float
    sequence: int
    """Unique, so the fields after it do not affect the order."""
    tenant: str
    model: str


def queue_key(
    *, tenant: str, model: str, sequence: int, priority: int = 0, deadline_s: float | None = None
) -> QueueKey:
    """The key of a request; `sequence` is the order of arrival."""
    due_s = inf if deadline_s is None else deadline_s
    return QueueKey(-priority, False, due_s, sequence, tenant, model)


class FairQueue:
    """Queued requests by tenant and model, and the order in which they are dispatched.

    Tenants take turns; the one that used least lately comes first. Within a tenant: priority, then
    models that a pod can serve now, then those that need a load, so that a load holds no slot that
    warm models could use meanwhile (`is_ready` bounds their delay); then requests that can be in
    time, then the earliest deadline, then the earliest arrival. Without clock and tasks: the
    simulator uses it too.
    """

    def __init__(self) -> None:
        self._tenants: dict[str, dict[str, list[QueueKey]]] = {}
        self._usage = TenantUsage()
        self.size = 0

    def of(self, tenant: str, model: str) -> Sequence[QueueKey]:
        """The queue of a model, in its order."""
        return self._tenants.get(tenant, {}).get(model, ())

    def add(self, key: QueueKey) -> None:
        """Queue a request; one that was removed before returns to its old position."""
        queues = self._tenants.setdefault(key.tenant, {})
        insort(queues.setdefault(key.model, []), key)
        self.size += 1

    def remove(self, key: QueueKey) -> bool:
        """Remove a request; returns False if it was not queued."""
        queues = self._tenants.get(key.tenant, {})
        queue = queues.get(key.model, [])
        position = bisect_left(queue, key)
        if position == len(queue) or queue[position] != key:
            return False
        del queue[position]
        self.size -= 1
        if not queue:
            del queues[key.model]
            if not queues:
                del self._tenants[key.tenant]
        return True

    def heads(self, now_s: float) -> list[list[QueueKey]]:
        """The first key of every model, by tenant: first the one whose turn it is."""
        tenants, rank = self._tenants, self._usage.rank
        ordered = list(tenants)
        if len(ordered) > 1:
            ordered.sort(key=lambda tenant: rank(tenant, now_s))
        return [[queue[0] for queue in tenants[tenant].values()] for tenant in ordered]

    def by_model(self) -> Iterator[list[QueueKey]]:
        """The queue of every model, which must not be changed."""
        for queues in self._tenants.values():
            yield from queues.values()

    def end_turn(self, tenant: str, seconds: float, now_s: float) -> None:
        """A request of the tenant was sent, which takes a device so many seconds."""
        self._usage.add(tenant, seconds, now_s)


def is_ready(*, waited_s: float, left_s: float, load_s: float) -> bool:
    """Whether a head whose model needs a load is dispatched among those of warm models."""
    if waited_s >= MAX_LOADS_WAITED * load_s:
        return True
    return load_s <= left_s <= URGENT_LOADS * load_s


def dispatch_order(
    heads_by_tenant: Iterable[Iterable[QueueKey]], is_head_ready: Callable[[QueueKey], bool]
) -> Iterator[QueueKey]:
    """The first key of every model: one round yields each tenant's first, the next its second."""
    ranked = [
        sorted(heads, key=lambda head: (head.negative_priority, not is_head_ready(head), head))
        for heads in heads_by_tenant
    ]
    for turn in range(max(map(len, ranked), default=0)):
        for heads in ranked:
            if turn < len(heads):
                yield heads[turn]


class PendingPlacement:
    """One attempt to place a request; mutable. Drivers add what they reserve.

    Attributes without a value in the constructor are set when the request is routed or queued.
    """

    arrival: IncomingRequest
    awaited_tier: str | None
    """Source tier of the load that the queued request waited for; None: it waited for no load."""
    is_pending: bool
    """False once it is placed, rejected or cancelled."""
    is_planned: bool
    """A plan has chosen its pod: where that takes it no more, it is planned again."""
    is_probe: bool
    """It is expected to be late, and tried all the same."""
    direct_tries: int
    """Reservations tried before the request was queued."""
    queue_key: QueueKey | None
    """Place in the queue, also while a reservation is tried; None: the request was never queued."""
    policy: str | None
    """The policy that sent or queued the request; None: neither happened."""
    spec: ModelSpec
    """The model generation that the request was last routed to."""
    wait_reason: Reason
    enqueued_s: float
    refusals: int
    """Reservations that were refused after the request was queued."""
    timeout: Timer | None
    work: PlacedRequest | None
    """What the request is expected to take at its pods, from its reservation until it is over."""
    place_at: str
    """The pod that a scheduler of workflows has chosen; empty: none has."""
    only: Collection[str] | None
    """Addresses of the pods to choose from; None: all."""
    __slots__ = tuple(__annotations__)

    def __init__(self, arrival: IncomingRequest, place_at: str = "") -> None:
        self.arrival = arrival
        self.place_at = place_at
        self.awaited_tier = None
        self.policy = None
        self.queue_key = None
        self.direct_tries = 0
        self.is_pending = True
        self.is_planned = False
        self.is_probe = False
        self.only = None
        self.work = None

    def end_work(self, *, is_cancelled: bool = False) -> None:
        """Remove the request's work from its pods; drivers call it with each release.

        `is_cancelled`: the response was not read to its end, perhaps not begun: a device may still
        run the inference.
        """
        if self.work is not None:
            self.work.end(is_cancelled=is_cancelled)
            self.work = None


P = TypeVar("P", bound=PendingPlacement)


class PlacementDriver(Generic[P]):
    """Carries out the placer's decisions: against Redis, or in a simulated cluster."""

    def reserve(
        self, placement: P, decision: SendTo, on_reply: Callable[[P, bool], None]
    ) -> bool | None:
        """Reserve what a decision needs; False: refused, since the local state was outdated.

        None: `on_reply` is called later, with whether it is granted.
        """
        raise NotImplementedError

    def release(self, placement: P) -> None:
        """Release a reservation that was granted."""

    def on_placed(self, placement: P) -> None:
        """A request that waited is placed."""

    def on_rejected(self, placement: P, error: Rejected) -> None:
        """A request that waited is rejected."""

    def before_dispatch(self) -> None:
        """Called before queued requests are tried."""


# Requests for a given pod: a workflow's step takes a place in the pod's step queue and no slot; a
# planned request takes a slot.

ANY_POD: Final = "*"
"""In place of a pod's name: the routing policy chooses."""


def decision_at(pod_name: str, key: str, routed: Decision, cluster: ClusterState) -> Decision:
    """Send to the named pod, which loads the model if needed, or to any (`ANY_POD`).

    `routed`: the decision without a named pod; it stands where the request must be rejected, and
    where the pod is gone.
    """
    if pod_name == ANY_POD:
        return _at_any_pod(key, routed, cluster)
    pod = cluster.pods.get(pod_name)
    if pod is None or not pod.is_accepting or isinstance(routed, Reject):
        return routed
    return _send_to(pod_name, key, cluster, takes_slot=False)


def _at_any_pod(key: str, routed: Decision, cluster: ClusterState) -> Decision:
    """In the step queue of the pod that the policy chose; it waits for a slot at no pod.

    Where it would wait for one, it is sent to the pod with the fewest inferences that holds the
    model or loads it.
    """
    if isinstance(routed, SendTo):
        if routed.entry == routed.predict:
            return replace(routed, takes_slot=False)
        return decision_at(routed.predict, key, routed, cluster)
    pods = cluster.warm(key) or cluster.warming(key)
    if isinstance(routed, Wait) and pods:
        pod = min(pods, key=lambda pod: (pod.inferring, pod.name))
        return decision_at(pod.name, key, routed, cluster)
    return routed


def planned_decision(spec: ModelSpec, pod: str, state: ClusterState) -> SendTo | None:
    """Send to the planned pod, warm or not; None if it takes no request now."""
    planned = state.pods.get(pod)
    if planned is None or not planned.has_free_slot:
        return None
    return _send_to(pod, spec.key, state, takes_slot=True)


def _send_to(pod: str, key: str, cluster: ClusterState, *, takes_slot: bool) -> SendTo:
    residency = cluster.holders(key).get(pod)
    if residency is not None and residency.is_warm:
        mode, reason = LoadMode.WARM, Reason.WARM
    elif residency is not None and residency.is_warming:
        mode, reason = LoadMode.JOIN, Reason.WARMING
    else:
        mode, reason = LoadMode.LOAD, Reason.COLD
    return SendTo(pod, pod, mode, reason, takes_slot=takes_slot)
