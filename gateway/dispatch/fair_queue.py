"""Queued requests by tenant and model, and the order in which they are dispatched.

Tenants take turns; the one that used least lately comes first. Within a tenant: priority, then
models that a pod can serve now, then those that need a load; within each, the earliest deadline,
then the earliest arrival. A load holds a slot that requests of warm models could use many times
meanwhile, and requests that gather before a load share it. Every head becomes ready in time: see
`is_ready`. Pure bookkeeping without clock or tasks, shared with the simulator.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Final, NamedTuple

from gateway.routing.cold_start import MAX_LOADS_WAITED
from registry.domain.demand import TenantUsage

URGENT_LOADS: Final = 2.0
"""Loads before its deadline at which a head no longer waits for requests of warm models; with less
time left than one load it would be late all the same."""


class QueueKey(NamedTuple):
    """A queued request. Order within a model: priority, deadline, arrival.

    A tuple, since heads are sorted at every change: a dataclass's comparisons cost ten times that.
    """

    negative_priority: int
    deadline_s: float
    sequence: int
    """Unique, so the fields after it do not affect the order."""
    tenant: str
    model: str


def queue_key(
    *, tenant: str, model: str, sequence: int, priority: int = 0, deadline_s: float | None = None
) -> QueueKey:
    """The key of a request; `sequence` is the order of arrival."""
    return QueueKey(-priority, inf if deadline_s is None else deadline_s, sequence, tenant, model)


class FairQueue:
    """Keys by tenant and model."""

    def __init__(self) -> None:
        self._tenants: dict[str, dict[str, list[QueueKey]]] = {}
        self._usage = TenantUsage()
        self.size = 0

    def depth(self, tenant: str, model: str) -> int:
        return len(self._tenants.get(tenant, {}).get(model, ()))

    def head(self, tenant: str, model: str) -> QueueKey | None:
        return next(iter(self._tenants.get(tenant, {}).get(model, ())), None)

    def ahead_of(self, key: QueueKey) -> int:
        """Queued requests of its model that come before this one."""
        return bisect_left(self._tenants.get(key.tenant, {}).get(key.model, ()), key)

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
