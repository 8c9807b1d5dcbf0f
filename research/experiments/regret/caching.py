"""Loads of models by rules that are not ours, on a given order of requests: pure functions.

LRU and Belady's rule see one cache with the places of all pods together and serve requests in the
order of arrival. The rule of Ray Serve's model multiplexing is computed with times.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Final

_MATCHING_TIMEOUT_S: Final = 1.0
"""RAY_SERVE_MULTIPLEXED_MODEL_ID_MATCHING_TIMEOUT_S."""


def lru_loads(requests: Sequence[str], places: int) -> int:
    """Number of loads if the model that was used least recently is evicted."""
    cache: OrderedDict[str, None] = OrderedDict()
    loads = 0
    for model in requests:
        if model not in cache:
            loads += 1
            if len(cache) == places:
                cache.popitem(last=False)
        cache[model] = None
        cache.move_to_end(model)
    return loads


def belady_loads(requests: Sequence[str], places: int) -> int:
    """The least number of loads in this order: the model used again last is evicted.

    Belady 1966, "A study of replacement algorithms for a virtual-storage computer", algorithm MIN.
    """
    following: list[float] = [inf] * len(requests)
    last: dict[str, int] = {}
    for at in reversed(range(len(requests))):
        following[at] = last.get(requests[at], inf)
        last[requests[at]] = at
    cache: dict[str, float] = {}
    """Next use by model."""
    loads = 0
    for at, model in enumerate(requests):
        if model not in cache:
            loads += 1
            if len(cache) == places:
                del cache[max(cache, key=lambda name: (cache[name], name))]
        cache[model] = following[at]
    return loads


@dataclass(slots=True)
class _Replica:
    """A replica of Ray Serve: `models` from the least to the most recently used."""

    models: OrderedDict[str, None] = field(default_factory=OrderedDict)
    waiting: deque[tuple[str, float]] = field(default_factory=deque)
    """Model and arrival of the requests that wait for the lock of loads, in its order."""
    is_loading: bool = False
    ongoing: int = 0
    device_s: float = 0.0
    """When its device is idle."""

    @property
    def known_models(self) -> set[str]:
        """Models that it has published: loaded, or to be loaded."""
        return {*self.models, *(model for model, _ in self.waiting)}


def multiplexed(
    requests: Sequence[tuple[float, str]],
    *,
    replicas: int,
    places: int,
    load_s: float,
    infer_s: float,
    max_ongoing: int = 5,
) -> tuple[int, list[float]]:
    """Loads and latencies under Ray Serve's model multiplexing; requests are times and models.

    A request goes to a replica that has, or is to load, its model, else to one with the fewest
    models, after a second to any; of several, to the one with the fewest ongoing requests. Replicas
    with `max_ongoing` requests (5 is Ray's default) take none; requests then wait in the order of
    arrival (`request_router`). A replica loads one model at a time, in the order of requests, and
    evicts the least recently used one (`serve/multiplex.py`). Here the router knows the replicas'
    models at once; inferences of a replica run one at a time.
    """
    return _MultiplexRun(replicas, places, load_s, infer_s, max_ongoing).play(requests)


class _MultiplexRun:
    def __init__(
        self, replicas: int, places: int, load_s: float, infer_s: float, max_ongoing: int
    ) -> None:
        self._replicas = [_Replica() for _ in range(replicas)]
        self._places = places
        self._load_s = load_s
        self._infer_s = infer_s
        self._max_ongoing = max_ongoing
        self._pending: deque[tuple[float, str]] = deque()
        """Time and model of the requests that no replica takes yet."""
        self._loads = 0
        self._latencies_s: list[float] = []
        self._events: list[tuple[float, int, _Replica, str | None]] = []
        """Time, number, replica, and the loaded model; None: a response."""
        self._numbers = count()

    def play(self, requests: Sequence[tuple[float, str]]) -> tuple[int, list[float]]:
        for at_s, model in requests:
            self._run_until(at_s)
            self._pending.append((at_s, model))
            self._assign(at_s)
        self._run_until(inf)
        return self._loads, self._latencies_s

    def _assign(self, now_s: float) -> None:
        """Send pending requests to replicas, the earliest first."""
        for request in list(self._pending):
            replica = self._replica_for(*request, now_s)
            if replica is not None:
                self._pending.remove(request)
                self._take(replica, *request, now_s)

    def _replica_for(self, at_s: float, model: str, now_s: float) -> _Replica | None:
        known = {id(each): each.known_models for each in self._replicas}
        fewest = min(map(len, known.values()))
        for candidates in (
            [each for each in self._replicas if model in known[id(each)]],
            [each for each in self._replicas if len(known[id(each)]) == fewest],
            self._replicas if now_s - at_s > _MATCHING_TIMEOUT_S else [],
        ):
            free = [each for each in candidates if each.ongoing < self._max_ongoing]
            if free:
                return min(free, key=lambda each: each.ongoing)
        return None

    def _take(self, replica: _Replica, at_s: float, model: str, now_s: float) -> None:
        replica.ongoing += 1
        if model in replica.models:
            replica.models.move_to_end(model)
            self._infer(replica, at_s, now_s)
            return
        replica.waiting.append((model, at_s))
        self._load_next(replica, now_s)

    def _load_next(self, replica: _Replica, now_s: float) -> None:
        """Give the lock to waiting requests, up to the next one that needs a load."""
        while replica.waiting and not replica.is_loading:
            model, arrival_s = replica.waiting[0]
            if model in replica.models:
                replica.waiting.popleft()
                self._infer(replica, arrival_s, now_s)
                continue
            if len(replica.models) == self._places:
                replica.models.popitem(last=False)
            replica.is_loading = True
            self._loads += 1
            heapq.heappush(
                self._events, (now_s + self._load_s, next(self._numbers), replica, model)
            )

    def _infer(self, replica: _Replica, arrival_s: float, now_s: float) -> None:
        end_s = replica.device_s = max(replica.device_s, now_s) + self._infer_s
        self._latencies_s.append(end_s - arrival_s)
        heapq.heappush(self._events, (end_s, next(self._numbers), replica, None))

    def _run_until(self, end_s: float) -> None:
        while self._events and self._events[0][0] <= end_s:
            now_s, _, replica, model = heapq.heappop(self._events)
            if model is None:
                replica.ongoing -= 1
                self._assign(now_s)
            else:
                replica.models[model] = None
                replica.is_loading = False
                self._load_next(replica, now_s)
