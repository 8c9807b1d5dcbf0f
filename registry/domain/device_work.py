"""Inferences that this process expects at one pod's device, and the work before another one.

Kept as running sums, so that a forecast costs the same however many there are. Pure; times in
seconds on the registry's clock, which may jump.
"""

from bisect import bisect_right, insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from operator import attrgetter
from typing import Final, Generic, TypeVar

from registry.domain.estimates import StageTimes

ASSUMED_DUE_S: Final = 60.0
"""Devices serve a tenant's earliest deadline first, requests without one as if due so long after
they were queued (`runtime.device.queue`)."""
_SAME_TIME_S: Final = 1e-6
"""Requests that wait for the same load are ready at the same time, but for rounding."""
_FEW: Final = 3
"""Requests up to which a sum over each is as fast as running sums."""
_due: Final[Callable[["DeviceWork"], float]] = attrgetter("due_s")
_share: Final[Callable[["DeviceWork"], float]] = attrgetter("share_s")
_start: Final[Callable[["DeviceWork"], float]] = attrgetter("start_s")


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
    is_ahead: bool = field(init=False, default=False)
    """Its device time has not passed, as of the queue's sums."""


@dataclass(slots=True)
class ModelWork:
    """The inferences of one model at one device whose device time has not passed."""

    by_due: list[DeviceWork] = field(default_factory=list)
    seconds: float = 0.0
    """Their device time, as if none had begun."""

    def later(self, due_s: float, now_s: float) -> list[DeviceWork]:
        """Those that have not begun and are due later."""
        later = self.by_due[bisect_right(self.by_due, due_s, key=_due) :]
        return [each for each in later if each.start_s > now_s]


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
    _seen_s: float = inf
    """The time of the sums; infinite without sums, which are kept from the first forecast over more
    than `_FEW` requests until there is none."""
    _line: list[DeviceWork] = field(default_factory=list)
    """By their start: those whose device time has not passed, and those behind them."""
    _models: dict[str, ModelWork] = field(default_factory=dict)
    """Of those in `_line`, by model key."""
    _passed_s: float = 0.0
    """Device time of all others."""
    _ready_s: float = -inf
    """When the last of them is ready, or later; infinite if one is not measured."""

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

    def remove(self, request: W) -> None:
        """Its inference is over; no effect the second time."""
        if self.inferences.pop(request, request) is request or self._seen_s == inf:
            return
        if not self.inferences:
            self._clear_sums(inf)
        elif request.is_ahead:
            self._line.remove(request)  # one of the first, as in `by_due`
            self._exclude(request)
        else:
            self._passed_s -= request.share_s

    def _clear_sums(self, seen_s: float) -> None:
        self._seen_s, self._line, self._models = seen_s, [], {}
        self._passed_s, self._ready_s = 0.0, -inf

    def _include(self, request: DeviceWork) -> None:
        ready_s, key = request.ready_s if request.is_measured else inf, request.key
        if ready_s > self._ready_s:
            self._ready_s = ready_s
        line = self._line
        if line and line[-1].start_s > request.start_s:
            insort(line, request, key=_start)
        else:
            line.append(request)
        work = self._models.get(key)
        if work is None:
            work = self._models[key] = ModelWork()
        by_due = work.by_due
        if by_due and by_due[-1].due_s > request.due_s:
            insort(by_due, request, key=_due)
        else:
            by_due.append(request)
        work.seconds += request.share_s
        request.is_ahead = True

    def _exclude(self, request: DeviceWork) -> None:
        request.is_ahead, work = False, self._models[request.key]
        work.seconds -= request.share_s
        work.by_due.remove(request)
        if not work.by_due:
            del self._models[request.key]

    def _look_at(self, now_s: float) -> None:
        """Note whose device time has passed until now; of a clock set back, whose has not."""
        if now_s < self._seen_s:
            self._clear_sums(now_s)
            for request in self.inferences:
                self._include(request)
        self._seen_s, line = now_s, self._line
        while line and line[0].start_s + line[0].share_s <= now_s:
            passed = line.pop(0)
            self._passed_s += passed.share_s
            self._exclude(passed)

    def backlog(
        self,
        key: str,
        due_s: float,
        ready_in_s: float,
        inferring: int,
        times: StageTimes,
        now_s: float,
    ) -> Backlog:
        """The work before an inference that is ready in `ready_in_s` and takes `times`.

        Only that of requests which are ready before it and are not due later, unless their
        inference has begun. Of other tenants those due later count as well, as far as their turns
        come before its own (`_turns_s`). `inferring`: requests in inference here, by the registry;
        the first requests beyond that number have ended. An inference shares most of its batch's
        time with others; requests of its model that wait as well share it.

        Of more than `_FEW` requests by running sums, where all are measured, ready and expected by
        the registry: apart from the sum over each by no more than `ready_in_s`.
        """
        count = len(self.inferences)
        if count <= _FEW or inferring < count:
            return self.backlog_of_each(key, due_s, ready_in_s, inferring, times, now_s)
        if now_s != self._seen_s:
            self._look_at(now_s)
        first = next(iter(self.inferences))
        if self._ready_s > now_s + ready_in_s + _SAME_TIME_S or (
            first.due_s > due_s and first.start_s > now_s
        ):
            self._ready_s = max(
                [each.ready_s if each.is_measured else inf for each in self.inferences]
            )
            return self.backlog_of_each(key, due_s, ready_in_s, inferring, times, now_s)
        free_s = waiting_s = 0.0
        overtaken = 0
        others_s: dict[str, float] = {}
        for model, work in self._models.items():
            seconds = work.seconds
            if work.by_due[-1].due_s > due_s:
                later = work.later(due_s, now_s)
                later_s = sum(map(_share, later))
                seconds -= later_s
                if (tenant := tenant_of(model)) == tenant_of(key):
                    overtaken += len(later)
                else:
                    others_s[tenant] = others_s.get(tenant, 0.0) + later_s
            free_s += seconds
            if model == key:
                waiting_s = seconds
        least_s = free_s + self._passed_s - first.infer_s
        for request in self._line:
            passed_s = now_s - request.start_s
            if passed_s < 0.0:
                break
            share_s = request.share_s
            free_s -= passed_s if passed_s < share_s else share_s
            if request.key == key:
                waiting_s -= share_s
        late_s = min(max(0.0, now_s - first.start_s - first.share_s), first.share_s)
        free_s += late_s
        if self.cancelled is not None:
            free_s += self.cancelled_left_s(now_s)
        if least_s > free_s:
            free_s = least_s
        joins_s = times.infer_s - times.share_s
        if joins_s > 0.0:
            free_s -= min(waiting_s, joins_s, free_s)
        if others_s:
            own_s = self._own_s(tenant_of(key), due_s, now_s)
            free_s += _turns_s(others_s, times.infer_s + own_s)
        return Backlog(free_s, late_s if late_s < free_s else free_s, overtaken)

    def _own_s(self, tenant: str, due_s: float, now_s: float) -> float:
        """Device time of a tenant's requests that have not begun and are not due later."""
        waiting = [each for each in self._line if each.start_s > now_s and each.due_s <= due_s]
        return sum([each.share_s for each in waiting if tenant_of(each.key) == tenant])

    def backlog_of_each(
        self,
        key: str,
        due_s: float,
        ready_in_s: float,
        inferring: int,
        times: StageTimes,
        now_s: float,
    ) -> Backlog:
        """As `backlog`, request by request."""
        ended = len(self.inferences) - inferring
        guessed_s = total_s = waiting_s = first_s = 0.0
        free_s = 0.0 if self.cancelled is None else self.cancelled_left_s(now_s)
        overtaken, own_s = 0, times.infer_s
        others_s: dict[str, float] = {}
        latest_s = ready_in_s + _SAME_TIME_S
        for request in self.inferences:
            if ended > 0:
                ended -= 1
                continue
            placed_s = request.placed_s
            ready_left_s = request.ready_s - (now_s if now_s > placed_s else placed_s)
            if ready_left_s > latest_s:
                continue
            share_s = left_s = request.share_s
            if request.start_s > now_s:
                if request.due_s > due_s:
                    if (tenant := tenant_of(request.key)) == tenant_of(key):
                        overtaken += 1
                    else:
                        others_s[tenant] = others_s.get(tenant, 0.0) + share_s
                    continue
                if request.key == key:
                    waiting_s += share_s
                elif tenant_of(request.key) == tenant_of(key):
                    own_s += share_s
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
        joins_s = times.infer_s - times.share_s
        if joins_s > 0.0:
            free_s -= min(waiting_s, joins_s, free_s)
        if others_s:
            free_s += _turns_s(others_s, own_s + waiting_s)
        return Backlog(free_s, guessed_s if guessed_s < free_s else free_s, overtaken)


def _turns_s(others_s: Mapping[str, float], own_s: float) -> float:
    """Device time of tenants with so much work each before a tenant's work of `own_s` is done.

    Devices serve tenants in turn (`runtime.device.queue`), so that none has more time than another.
    """
    return sum([min(each, own_s) for each in others_s.values()])
