"""Inferences that this process expects at one pod's device, and the work before another one.

Kept as running sums, so that a forecast costs the same however many there are. Pure; times in
seconds on the registry's clock, which may jump.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush
from math import inf
from typing import Final, Generic, TypeVar

ASSUMED_DUE_S: Final = 60.0
"""Devices serve a tenant's earliest deadline first, requests without one as if due so long after
they were queued (`runtime.device.queue`)."""
_SAME_TIME_S: Final = 1e-6
"""Requests that wait for the same load are ready at the same time, but for rounding."""
_FEW: Final = 3
"""Requests up to which a sum over each is as fast as running sums."""


@lru_cache(maxsize=4096)
def tenant_of(key: str) -> str:
    """The tenant of a model key `namespace/name@generation`."""
    return key.partition("/")[0]


@dataclass(eq=False, slots=True)
class DeviceWork:
    """One inference, with the times expected when its request was placed."""

    key: str
    placed_s: float
    due_s: float
    ready_s: float
    """When it can begin: the model is loaded, the request is at the pod."""
    start_s: float
    """When it is expected to begin."""
    share_s: float
    """Device time."""
    infer_s: float
    """Time of its whole batch."""
    is_measured: bool
    tenant: str = field(init=False)
    sequence: int = field(init=False, default=0)
    """Its place among all that were placed at the pod."""
    is_waiting: bool = field(init=False, default=False)
    """It has not begun, as of the queue's last look at the clock."""

    def __post_init__(self) -> None:
        self.tenant = tenant_of(self.key)


W = TypeVar("W", bound=DeviceWork)


@dataclass(slots=True)
class Backlog:
    """What the device does before an inference, as a time from now."""

    free_s: float
    guessed_s: float
    """The part of `free_s` that is not known: work of unmeasured or unknown models, delays."""
    overtaken: int
    """Requests there that the inference comes before: they are due later and have not begun."""


@dataclass(eq=False, slots=True)
class DeviceQueue(Generic[W]):
    """The inferences of one pod, in the order of placement."""

    inferences: dict[W, None] = field(default_factory=dict)
    """Those whose inference is here; the first ones may be past it."""
    cancelled: W | None = None
    """The last one that was cancelled: the device may still run its inference."""
    _has_sums: bool = False
    """From the first forecast over more than `_FEW` requests, until there is none."""
    _sequence: int = 0
    _seen_s: float = -inf
    """The time by which requests wait, or have begun."""
    _starts: list[tuple[float, int, W]] = field(default_factory=list)
    """A heap: those that wait, by their start, and some that are over."""
    _dues: list[tuple[float, int, W]] = field(default_factory=list)
    """In order: those that wait, by their due time."""
    _waiting_s: dict[str, float] = field(default_factory=dict)
    """By model key: device time of those that wait."""
    _running: dict[W, None] = field(default_factory=dict)
    """Those that have begun, but for those whose device time has passed."""
    _total_s: float = 0.0
    """Device time of all `inferences`."""
    _unmeasured: int = 0
    _ready_s: float = -inf
    """When the last of them is ready, or later."""

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

    def enqueue(self, request: W) -> None:
        """Add a request that was placed now."""
        if self._has_sums:
            self._look_at(request.placed_s)
            self._include(request)
        self.inferences[request] = None

    def remove(self, request: W) -> None:
        """Its inference is over; no effect the second time."""
        if self.inferences.pop(request, request) is request or not self._has_sums:
            return
        if not self.inferences:
            self._clear_sums()
            return
        self._total_s -= request.share_s
        self._unmeasured -= not request.is_measured
        if request.is_waiting:
            self._end_wait(request)
        else:
            self._running.pop(request, None)

    def _clear_sums(self) -> None:
        self._has_sums = False
        self._starts, self._dues, self._waiting_s, self._running = [], [], {}, {}
        self._total_s, self._unmeasured, self._ready_s = 0.0, 0, -inf

    def _include(self, request: W) -> None:
        self._sequence = request.sequence = self._sequence + 1
        self._total_s += request.share_s
        self._unmeasured += not request.is_measured
        self._ready_s = max(self._ready_s, request.ready_s)
        request.is_waiting = request.start_s > self._seen_s
        if not request.is_waiting:
            self._running[request] = None
            return
        heappush(self._starts, (request.start_s, request.sequence, request))
        insort(self._dues, (request.due_s, request.sequence, request))
        waiting_s = self._waiting_s
        waiting_s[request.key] = waiting_s.get(request.key, 0.0) + request.share_s

    def _end_wait(self, request: W) -> None:
        request.is_waiting = False
        del self._dues[bisect_left(self._dues, (request.due_s, request.sequence))]
        if self._dues:
            self._waiting_s[request.key] -= request.share_s
        else:
            self._waiting_s.clear()

    def _look_at(self, now_s: float) -> None:
        """Note which requests have begun until now; of a clock set back, which have not."""
        if now_s < self._seen_s or not self._has_sums:
            self._clear_sums()
            self._has_sums, self._seen_s = True, now_s
            for request in self.inferences:
                self._include(request)
            return
        self._seen_s, starts = now_s, self._starts
        while starts and (starts[0][0] <= now_s or not starts[0][2].is_waiting):
            request = heappop(starts)[2]
            if request.is_waiting:
                self._end_wait(request)
                self._running[request] = None

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

        Of more than `_FEW` requests by running sums, where all are measured, ready and expected by
        the registry: apart from the sum over each by no more than `ready_in_s`.
        """
        count = len(self.inferences)
        if count > _FEW and inferring >= count:
            self._look_at(now_s)
            first = next(iter(self.inferences))
            is_ready = self._ready_s - now_s <= ready_in_s + _SAME_TIME_S
            if is_ready and not self._unmeasured and not (first.is_waiting and first.due_s > due_s):
                return self._summed(first, key, due_s, infer_s, joins_s, now_s)
        return self.backlog_of_each(
            key, due_s, ready_in_s=ready_in_s, inferring=inferring, infer_s=infer_s,
            joins_s=joins_s, now_s=now_s,
        )  # fmt: skip

    def _summed(
        self, first: W, key: str, due_s: float, infer_s: float, joins_s: float,
        now_s: float,
    ) -> Backlog:  # fmt: skip
        free_s = 0.0 if self.cancelled is None else self.cancelled_left_s(now_s)
        late_s = 0.0
        if not first.is_waiting:
            late_s = min(max(0.0, now_s - first.start_s - first.share_s), first.share_s)
        passed = []
        for request in self._running:
            left_s = request.start_s + request.share_s - now_s
            if left_s > 0.0:
                free_s += left_s
            else:
                passed.append(request)
        for request in passed:
            del self._running[request]
        waiting_s = self._waiting_s.get(key, 0.0)
        free_s += late_s + sum(self._waiting_s.values())
        total_s = self._total_s
        overtaken, own_s = 0, infer_s
        others_s: dict[str, float] = {}
        if self._dues and self._dues[-1][0] > due_s:
            tenant = tenant_of(key)
            own_s += sum([s for each, s in self._waiting_s.items() if tenant_of(each) == tenant])
            for _, _, request in self._dues[bisect_right(self._dues, (due_s, inf)) :]:
                share_s = request.share_s
                free_s -= share_s
                total_s -= share_s
                if request.key == key:
                    waiting_s -= share_s
                if request.tenant == tenant:
                    overtaken += 1
                    own_s -= share_s
                else:
                    others_s[request.tenant] = others_s.get(request.tenant, 0.0) + share_s
        free_s = max(free_s, total_s - first.infer_s)
        if joins_s > 0.0:
            free_s -= min(waiting_s, joins_s, free_s)
        if others_s:
            free_s += _turns_s(others_s, own_s)
        return Backlog(free_s, min(late_s, free_s), overtaken)

    def backlog_of_each(
        self, key: str, due_s: float, *, ready_in_s: float, inferring: int, infer_s: float,
        joins_s: float, now_s: float,
    ) -> Backlog:  # fmt: skip
        """As `backlog`, request by request."""
        ended = len(self.inferences) - inferring
        guessed_s = total_s = waiting_s = first_s = 0.0
        free_s = 0.0 if self.cancelled is None else self.cancelled_left_s(now_s)
        overtaken = 0
        own_s = infer_s
        tenant = tenant_of(key)
        others_s: dict[str, float] = {}
        latest_s = ready_in_s + _SAME_TIME_S
        for request in self.inferences:
            if ended > 0:
                ended -= 1
                continue
            ready_s = request.ready_s
            ready_left_s = ready_s - (now_s if now_s > request.placed_s else request.placed_s)
            if ready_left_s > latest_s:
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
        if total_s - first_s > free_s:
            free_s = total_s - first_s
        if joins_s > 0.0:
            free_s -= min(waiting_s, joins_s, free_s)
        if others_s:
            free_s += _turns_s(others_s, own_s)
        return Backlog(free_s, guessed_s if guessed_s < free_s else free_s, overtaken)


def _turns_s(others_s: Mapping[str, float], own_s: float) -> float:
    """Device time of tenants with so much work each before a tenant's work of `own_s` is done.

    Devices serve tenants in turn (`runtime.device.queue`), so that none has more time than another.
    """
    return sum([min(each, own_s) for each in others_s.values()])
