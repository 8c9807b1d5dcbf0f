"""Work that this process has placed at one pod: what each request there still needs.

Counts of the registry say how many requests a pod has, not whose they are. A gateway knows the
models of those it has placed, from the reservation on, and so when the device and each slot is
expected to be free. Pure; times in seconds on the registry's clock, which may jump: what is left of
a request is never negative and never more than it was at first.
"""

from collections import deque
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import Final

from registry.domain.device_work import DeviceQueue, DeviceWork
from registry.domain.estimates import StageTimes

_ASSUMED_FOR_S: Final = 1.0
_placed = attrgetter("placed_s")
_MEAN_WEIGHT: Final = 0.125
"""Weight of the latest request in the moving averages."""
_RECENT: Final = 256
"""Requests that the averages follow: what came before has a weight of 1e-15."""


@dataclass(eq=False, slots=True)
class PlacedRequest(DeviceWork):
    """One request, with the times expected when it was placed."""

    after_s: float
    """From the end of its inference to the response."""
    entry: "PodWork"
    predict: "PodWork"

    def slot_left_s(self, now_s: float) -> float:
        """Time until its slot is free; a late request takes as long again as it is late."""
        end_s = self.start_s + self.infer_s + self.after_s
        return min(abs(end_s - now_s), end_s - self.placed_s)

    def end(self, *, is_cancelled: bool = False) -> None:
        """The request is over; no effect the second time. A device completes what it has begun."""
        if self.entry is not self.predict:
            self.entry.proxied.pop(self, None)
        self.predict.remove(self)
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


@dataclass(eq=False, slots=True)
class PodWork(DeviceQueue[PlacedRequest]):
    """The placed requests of one pod, in the order of placement."""

    proxied: dict[PlacedRequest, None] = field(default_factory=dict)
    """Those that hold a slot here, with their inference elsewhere."""
    _mean: MeanTimes | None = None
    """Of the requests placed here before the `_recent` ones."""
    _recent: deque[StageTimes] = field(default_factory=lambda: deque(maxlen=_RECENT))
    assumed: MeanTimes | None = None
    """Before the first: those of the models at the pod, computed at `assumed_at_s`."""
    assumed_at_s: float = 0.0

    def add(self, request: PlacedRequest, times: StageTimes) -> None:
        """Add a request that was placed at this predict pod; `times`: of its slot, unhindered."""
        if self._seen_s != inf:
            if request.placed_s != self._seen_s:
                self._look_at(request.placed_s)
            self._include(request)
        self.inferences[request] = None
        self._recent.append(times)

    @property
    def holders(self) -> list[PlacedRequest]:
        """Those that hold a slot here, in the order of placement."""
        found = [each for each in self.inferences if each.entry is self]
        return sorted([*found, *self.proxied], key=_placed) if self.proxied else found

    def mean_of_others(self, now_s: float) -> MeanTimes | None:
        """The times of requests that other processes have placed here; None: to be computed."""
        mean = self._mean
        for times in self._recent:
            if mean is None:
                mean = self._mean = MeanTimes(times.share_s, times.hold_s, times.postprocess_s)
            mean.share_s += _MEAN_WEIGHT * (times.share_s - mean.share_s)
            mean.hold_s += _MEAN_WEIGHT * (times.hold_s - mean.hold_s)
            mean.after_s += _MEAN_WEIGHT * (times.postprocess_s - mean.after_s)
        self._recent.clear()
        if mean is not None:
            return mean
        return self.assumed if abs(now_s - self.assumed_at_s) < _ASSUMED_FOR_S else None

    def slots_left_s(
        self, key: str, *, taken: int, ended: int, load_s: float, now_s: float
    ) -> list[float]:
        """Time until each slot that a placed request holds is free, in the order of placement.

        `taken`: slots taken by the registry's count; the first requests beyond that number hold
        none. The first `ended` are past their inference. Those of `key` wait for the rest of a load
        of `load_s`.
        """
        left_s: list[float] = []
        holders = self.holders
        skipped = len(holders) - taken
        for request in holders:
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
