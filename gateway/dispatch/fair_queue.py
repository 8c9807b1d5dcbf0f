"""Queued requests by tenant and model; the tenant that used least lately comes first.

Pure bookkeeping without clock or tasks, shared with the simulator: the owner tries to place the
heads in the order of `dispatch_order`, and removes those that were placed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from registry.domain.tenant_usage import TenantUsage

if TYPE_CHECKING:
    from collections.abc import Iterator


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

    def __len__(self) -> int:
        return self.size

    def depth(self, tenant: str, model: str) -> int:
        return len(self._tenants.get(tenant, {}).get(model, ()))

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
