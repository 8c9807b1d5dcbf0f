"""The waiting room: bounded queues per model, tenants taking turns.

Pure bookkeeping without clock or tasks, shared with the simulator. Whoever owns it asks for the
heads in fair order, tries each, and takes out those that could be placed.
"""

from __future__ import annotations

from bisect import insort
from math import inf
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


class QueueKey(NamedTuple):
    """A place in the waiting room. Order inside a model: priority, deadline, arrival.

    A tuple, since heads are sorted at every change: a dataclass' comparisons cost ten times that.
    """

    negative_priority: int
    deadline_s: float
    sequence: int
    """Different for each, so that what follows decides nothing."""
    tenant: str
    model: str


def queue_key(
    *, tenant: str, model: str, sequence: int, priority: int = 0, deadline_s: float | None = None
) -> QueueKey:
    """A ticket for a request of `model`; `sequence` says who came first."""
    return QueueKey(-priority, inf if deadline_s is None else deadline_s, sequence, tenant, model)


class FairQueue:
    """Tickets by tenant and model, with tenants in the order of their turns."""

    def __init__(self) -> None:
        self._tenants: dict[str, dict[str, list[QueueKey]]] = {}
        self.size = 0
        """How many requests wait."""

    def __len__(self) -> int:
        return self.size

    def depth(self, tenant: str, model: str) -> int:
        """How many requests of the model wait."""
        return len(self._tenants.get(tenant, {}).get(model, ()))

    def add(self, place: QueueKey) -> None:
        """Let a request wait; one that was taken out too early returns to its old place."""
        queues = self._tenants.setdefault(place.tenant, {})
        insort(queues.setdefault(place.model, []), place)
        self.size += 1

    def remove(self, place: QueueKey) -> bool:
        """Take a request out; False if it was not there."""
        queues = self._tenants.get(place.tenant, {})
        queue = queues.get(place.model, [])
        if place not in queue:
            return False
        queue.remove(place)
        self.size -= 1
        if not queue:
            del queues[place.model]
            if not queues:
                del self._tenants[place.tenant]
        return True

    def heads(self) -> Iterator[QueueKey]:
        """The first ticket of every model: tenants in turn, each tenant's most urgent first.

        One round takes the most urgent head of each tenant, the next round their second, and so on.
        """
        ranked = [
            sorted(queue[0] for queue in queues.values()) for queues in self._tenants.values()
        ]
        for turn in range(max(map(len, ranked), default=0)):
            for heads in ranked:
                if turn < len(heads):
                    yield heads[turn]

    def took_turn(self, tenant: str) -> None:
        """The tenant was served: everybody else goes before it next time."""
        queues = self._tenants.pop(tenant, None)
        if queues is not None:
            self._tenants[tenant] = queues
