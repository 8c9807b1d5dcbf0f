"""The order in which queued models are dispatched.

Tenants take turns. Within a tenant: priority, then models that a pod can serve now, then those that
need a load; within each, the earliest deadline, then the earliest arrival. A load holds a slot that
requests of warm models could use many times meanwhile, and requests that gather before a load share
it. Every head becomes ready in time: see `is_ready`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.routing.cold_start import MAX_LOADS_WAITED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gateway.dispatch.fair_queue import QueueKey

URGENT_LOADS: Final = 2.0
"""Loads before its deadline at which a head no longer waits for requests of warm models; with less
time left than one load it would be late all the same."""


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
