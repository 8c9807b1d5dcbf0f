"""What the placer remembers of recent requests, to guard the others: tenants, refusals, probes.

Slots: a request that finds no free slot waits for the end of a batch, and then at the device for
the next one, which began before it arrived. So a tenant that holds most of a pod's slots takes none
of the last ones while other tenants send requests, too.

Refusals: where a model's queue is full, or too long for a deadline, thousands of requests in a
second would ask the policy the same. For a moment, requests that are no better off than one just
refused are refused like it: until something changes, or where many are queued, until the queue is
shorter.

Probes: some requests try what is expected to be too late, or what was never measured, limited by
the time that they take (`registry.domain.probes`). Pure; the clock is passed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

from gateway.routing.decision import Reason, SendTo
from registry.domain.probes import ProbeBudget

if TYPE_CHECKING:
    from gateway.dispatch.pending_placement import PendingPlacement
    from gateway.errors import Rejected
    from gateway.routing.route_request import IncomingRequest, RoutingResult
    from registry.domain.pod_state import PodState

HEADROOM: Final = 4
"""Of so many slots one is left to others: none of fewer."""
RECENT_S: Final = 10.0
"""How long ago another tenant's last request may have arrived."""
MAX_AGE_S: Final = 0.02
"""Also without a change: forecasts change with time alone."""
NOTABLE_SHARE: Final = 0.05
"""Of a queue: while less of it has left, a refusal holds whatever else changes. The queue refills
as soon as it no longer holds, long before the pods run out of requests."""
_FIRST_PROBE_S: Final = 1.0
"""From a model's first request with a deadline to its first probe."""


class RecentTenants:
    """When a tenant other than a given one last sent a request: the last two tenants suffice."""

    def __init__(self) -> None:
        self._last = ""
        self._last_s = -inf
        self._other_s = -inf
        """Of the last tenant before `_last`."""

    def record(self, tenant: str, now_s: float) -> None:
        if tenant != self._last:
            self._other_s = self._last_s
            self._last = tenant
        self._last_s = now_s

    def has_other(self, tenant: str, now_s: float) -> bool:
        """Whether another tenant has sent a request lately, by a clock that may be set back."""
        other_s = self._other_s if tenant == self._last else self._last_s
        return abs(now_s - other_s) <= RECENT_S


def leaves_slot(tenant: str, pod: PodState) -> bool:
    """Whether the tenant holds most of the slots, and may not take one of the last."""
    if pod.slots - pod.slots_busy > pod.slots // HEADROOM:
        return False
    prefix = f"{tenant}/"
    held = sum([each.key.startswith(prefix) for each in pod.work.holders])
    return 2 * held >= pod.slots


@dataclass(frozen=True, slots=True)
class Refusal:
    result: RoutingResult
    error: Rejected
    """Never raised itself, so that it keeps no traceback: raise copies."""
    left_s: float
    """What that request had until its deadline; infinite without one."""
    until_s: float
    least_queued: int
    """It holds while as many requests of the model are queued; 0: until anything changes."""


class RecentRefusals:
    """The latest refusal of each kind of request. Times are of the registry's clock."""

    def __init__(self) -> None:
        self._by_kind: dict[tuple[object, ...], Refusal] = {}

    @property
    def are_kept(self) -> bool:
        """Whether there are any."""
        return bool(self._by_kind)

    def keep(
        self, request: IncomingRequest, result: RoutingResult, error: Rejected, *, queued: int,
        now_s: float,
    ) -> None:  # fmt: skip
        """`queued`: requests of its model."""
        notable = int(queued * NOTABLE_SHARE)
        self._by_kind[_kind(request)] = Refusal(
            result, error.copy(), _left_s(request, now_s), now_s + MAX_AGE_S,
            queued - notable if notable else 0,
        )  # fmt: skip

    def find(self, request: IncomingRequest, *, queued: int, now_s: float) -> Refusal | None:
        """The refusal of a request that had as much time left as this new one, or more."""
        known = self._by_kind.get(_kind(request))
        if known is None or queued < known.least_queued:
            return None
        if not 0 <= known.until_s - now_s <= MAX_AGE_S or _left_s(request, now_s) > known.left_s:
            return None
        return known

    def note_change(self, now_s: float) -> None:
        """Forget those that hold until something changes, and old ones."""
        self._by_kind = {
            kind: known
            for kind, known in self._by_kind.items()
            if known.least_queued and now_s <= known.until_s
        }


def _kind(request: IncomingRequest) -> tuple[object, ...]:
    return request.model, request.policy, request.size_class, request.deadline_s is None


def _left_s(request: IncomingRequest, now_s: float) -> float:
    return inf if request.deadline_s is None else request.deadline_s - now_s


class RequestProbes:
    """The probes of one gateway, by model."""

    def __init__(self) -> None:
        self._late = ProbeBudget(_FIRST_PROBE_S)
        self._transfers = ProbeBudget()

    def may_be_late(self, placement: PendingPlacement, now_s: float) -> bool:
        """Whether the request may be tried although it is expected to miss its deadline."""
        request = placement.arrival
        if request.deadline_s is None:
            return False
        return placement.is_probe or self._late.is_due(str(request.model), now_s)

    def may_try_transfer(self, request: IncomingRequest, now_s: float) -> bool:
        """Whether it may be proxied although the model's transfers were never measured.

        One that ends after its deadline measures nothing, and the next would do the same.
        """
        return request.deadline_s is None or self._transfers.is_due(str(request.model), now_s)

    def count(self, placement: PendingPlacement, result: RoutingResult, now_s: float) -> None:
        """Count a probe once, also if it is queued before it is sent."""
        request = placement.arrival
        if result.is_probe and not placement.is_probe:
            placement.is_probe = True
            self._late.spend(str(request.model), now_s, result.cost_s, result.max_pause_s)
        if request.deadline_s is not None and _tries_transfer(result):
            self._transfers.spend(str(request.model), now_s, request.deadline_s - now_s)


def _tries_transfer(result: RoutingResult) -> bool:
    decision = result.decision
    if not isinstance(decision, SendTo) or decision.reason is not Reason.WARM_REMOTE:
        return False
    return decision.forecast is not None and not decision.forecast.is_measured
