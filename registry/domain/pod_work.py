"""Work that this process has placed at one pod: what each request there still needs.

Counts of the registry say how many requests a pod has, not whose they are. A gateway knows the
models of those it has placed, from the reservation on, and so when the device and each slot is
expected to be free. Pure; times in seconds on the registry's clock, which may jump: what is left of
a request is never negative and never more than it was at first.

Reservations of workflows' steps carry their model in the registry, so that every scheduler knows
what the others have queued at a pod.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

ASSUMED_DUE_S: Final = 60.0
"""Devices serve a tenant's earliest deadline first, requests without one as if due so long after
they were queued (`runtime.device.queue`)."""
_SAME_TIME_S: Final = 1e-6
"""Requests that wait for the same load are ready at the same time, but for rounding."""
_ASSUMED_FOR_S: Final = 1.0
_MEAN_WEIGHT: Final = 0.125
"""Weight of the latest request in the moving averages."""


def tenant_of(key: str) -> str:
    """The tenant of a model key `namespace/name@generation`."""
    return key.partition("/")[0]


@dataclass(eq=False, slots=True)
class PlacedRequest:
    """One request, with the times expected when it was placed."""

    key: str
    placed_s: float
    due_s: float
    ready_s: float
    """When its inference can begin: the model is loaded, the request is at the predict pod."""
    start_s: float
    """When its inference is expected to begin."""
    share_s: float
    """Device time."""
    infer_s: float
    """Time of its whole batch."""
    after_s: float
    """From the end of its inference to the response."""
    is_measured: bool
    entry: PodWork
    predict: PodWork
    tenant: str = field(init=False)

    def __post_init__(self) -> None:
        self.tenant = tenant_of(self.key)

    @property
    def slot_end_s(self) -> float:
        """When its slot is expected to be free."""
        return self.start_s + self.infer_s + self.after_s

    def slot_left_s(self, now_s: float) -> float:
        """Time until its slot is free; a late request takes as long again as it is late."""
        end_s = self.slot_end_s
        return min(abs(end_s - now_s), end_s - self.placed_s)

    def end(self, *, is_cancelled: bool = False) -> None:
        """The request is over; no effect the second time. A device completes what it has begun."""
        self.entry.holders.pop(self, None)
        self.predict.inferences.pop(self, None)
        if is_cancelled:
            self.predict.cancelled = self


@dataclass(slots=True)
class MeanTimes:
    """What one request at a pod takes on average."""

    share_s: float
    """Of the device."""
    hold_s: float
    """Of a slot, unhindered."""
    after_s: float
    """Of a slot after its inference."""

    def include(self, share_s: float, hold_s: float, after_s: float) -> None:
        """Count one request more in the moving averages."""
        self.share_s += _MEAN_WEIGHT * (share_s - self.share_s)
        self.hold_s += _MEAN_WEIGHT * (hold_s - self.hold_s)
        self.after_s += _MEAN_WEIGHT * (after_s - self.after_s)


@dataclass(slots=True)
class Backlog:
    """What the device does before an inference, as a time from now."""

    free_s: float
    guessed_s: float
    """The part of `free_s` that is not known: work of unmeasured or unknown models, delays."""
    overtaken: int
    """Requests there that the inference comes before: they are due later and have not begun."""


@dataclass(eq=False, slots=True)
class PodWork:
    """The placed requests of one pod, in the order of placement."""

    inferences: dict[PlacedRequest, None] = field(default_factory=dict)
    """Those whose inference is here; the first ones may be past it."""
    holders: dict[PlacedRequest, None] = field(default_factory=dict)
    """Those that hold a slot here."""
    mean: MeanTimes | None = None
    """Of the requests placed here so far."""
    assumed: MeanTimes | None = None
    """Before the first: those of the models at the pod, computed at `assumed_at_s`."""
    assumed_at_s: float = 0.0
    cancelled: PlacedRequest | None = None
    """The last one that was cancelled: the device may still run its inference."""

    def cancelled_left_s(self, now_s: float) -> float:
        """Time until the device has run a cancelled inference that it had begun."""
        request = self.cancelled
        if request is None:
            return 0.0
        left_s = request.start_s + request.infer_s - now_s
        if 0.0 < left_s <= request.infer_s:
            return left_s
        self.cancelled = None
        return 0.0

    def add(self, request: PlacedRequest, hold_s: float) -> None:
        """Add a request that was placed at this predict pod; `hold_s`: of its slot, unhindered."""
        self.inferences[request] = None
        request.entry.holders[request] = None
        if self.mean is None:
            self.mean = MeanTimes(request.share_s, hold_s, request.after_s)
        else:
            self.mean.include(request.share_s, hold_s, request.after_s)

    def mean_of_others(self, now_s: float) -> MeanTimes | None:
        """The times of requests that other processes have placed here; None: to be computed."""
        if self.mean is not None:
            return self.mean
        return self.assumed if abs(now_s - self.assumed_at_s) < _ASSUMED_FOR_S else None

    def assume_others(self, mean: MeanTimes, now_s: float) -> None:
        self.assumed, self.assumed_at_s = mean, now_s

    def slots_left_s(
        self, key: str, *, taken: int, ended: int, load_s: float, now_s: float
    ) -> list[float]:
        """Time until each slot that a placed request holds is free, in the order of placement.

        `taken`: slots taken by the registry's count; the first requests beyond that number hold
        none. The first `ended` are past their inference. Those of `key` wait for the rest of a load
        of `load_s`.
        """
        left_s: list[float] = []
        skipped = len(self.holders) - taken
        for request in self.holders:
            slot_s = request.slot_left_s(now_s)
            if ended > 0:
                slot_s = min(slot_s, request.after_s)
            elif load_s > 0.0 and request.key == key:
                slot_s = max(slot_s, load_s + request.infer_s + request.after_s)
            if skipped <= 0:
                left_s.append(slot_s)
            ended -= 1
            skipped -= 1
        return left_s

    def backlog(
        self, key: str, due_s: float, *, ready_in_s: float, inferring: int, infer_s: float,
        joins_s: float, now_s: float,
    ) -> Backlog:  # fmt: skip
        """The work before an inference that is ready in `ready_in_s`.

        Only that of requests which are ready before it and are not due later, unless their
        inference has begun. Of other tenants those due later count as well, as far as their turns
        come before its own (`_turns_s`). `inferring`: requests in inference here, by the registry;
        the first requests beyond that number have ended. `infer_s`: of its batch. `joins_s`: time
        for which an inference shares its batch with others; requests of its model that wait as well
        share it.
        """
        ended = len(self.inferences) - inferring
        guessed_s = total_s = waiting_s = first_s = 0.0
        free_s = self.cancelled_left_s(now_s)
        overtaken = 0
        own_s = infer_s
        tenant = tenant_of(key)
        others_s: dict[str, float] = {}
        for request in self.inferences:
            if ended > 0:
                ended -= 1
                continue
            ready_s = request.ready_s
            ready_left_s = min(ready_s - now_s, ready_s - request.placed_s)
            if ready_left_s > ready_in_s + _SAME_TIME_S:
                continue
            share_s = left_s = request.share_s
            if request.start_s > now_s:
                if request.due_s > due_s:
                    if request.tenant == tenant:
                        overtaken += 1
                    else:
                        others_s[request.tenant] = others_s.get(request.tenant, 0.0) + share_s
                    continue
                if request.tenant == tenant:
                    own_s += share_s
                if request.key == key:
                    waiting_s += share_s
            else:
                left_s = request.start_s + share_s - now_s
                if left_s < 0.0:
                    left_s = min(-left_s, share_s) if total_s == 0.0 else 0.0
                    guessed_s += left_s
            if total_s == 0.0:
                first_s = request.infer_s
            total_s += share_s
            free_s = (ready_left_s if ready_left_s > free_s else free_s) + left_s
            if not request.is_measured:
                guessed_s += left_s
        free_s = max(free_s, total_s - first_s)
        if joins_s > 0.0:
            free_s -= min(waiting_s, joins_s, free_s)
        if others_s:
            free_s += _turns_s(others_s, own_s)
        return Backlog(free_s, min(guessed_s, free_s), overtaken)


def _turns_s(others_s: Mapping[str, float], own_s: float) -> float:
    """Device time of tenants with so much work each before a tenant's work of `own_s` is done.

    Devices serve tenants in turn (`runtime.device.queue`), so that none has more time than another.
    """
    return sum([min(each, own_s) for each in others_s.values()])


@dataclass(frozen=True, slots=True)
class QueuedSteps:
    """Of one pod: steps that have been sent and whose inference has not ended."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """By model key; each at least 1."""
    since_s: float = inf
    """When the pod can have begun the first of them: when the last one before them ended, or, on
    an idle pod, when they came. Infinite: it is not known."""

    def followed_by(self, counts: Mapping[str, int], now_s: float) -> QueuedSteps:
        """The steps after a change at `now_s`."""
        has_one_ended = any(counts.get(key, 0) < count for key, count in self.counts.items())
        is_begun = bool(self.counts) and not has_one_ended
        return QueuedSteps(dict(counts), self.since_s if is_begun else now_s)


NO_STEPS: Final = QueuedSteps()


def step_reservation_id(identity: str, key: str) -> str:
    """The id of a step's reservation, which names the model for the registry's script."""
    return f"{identity}|{key}"
