"""Free memory of the pods' devices, and the price of an eviction there, cached by pod.

Free memory excludes loads in progress, which heartbeats leave out. A price is the expected waiting
time, in seconds, of the evicted models' later requests: the gateway compares it with what a request
gains by a load, the autoscaler with what holding another model saves. Rates of arrival and the
characteristic time are computed once a second, not with a decision; a pod's victims when they are
asked for after a change at the pod, or of another copy of one of its models.
"""

from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import exp, inf, isfinite
from typing import Final

from registry.domain.demand import ExpectedRates
from registry.domain.estimates import ModelEstimates
from registry.domain.model import Tier
from registry.domain.pod_index import PodIndex, ResidencyIndex
from registry.domain.pod_state import PodState

WINDOW_S: Final = 60.0
"""Time constant of the averages: 15 to 600 s lead to equally good decisions."""
_FORECAST_WINDOW_S: Final = 20.0
"""A forecast counts as much as this many seconds of own observation: a quarter of the window's, so
that one that is wrong by ten times moves a rate by three."""
_MAX_SCALE: Final = 8.0
"""Beyond that many gateways a wrong forecast is likelier than a smaller share."""
_MIN_OBSERVED_S: Final = 1.0
_MIN_RATE_PER_S: Final = 1e-5
"""Models below this rate are dropped: two arrivals a day."""


@dataclass(slots=True)
class _Average:
    per_s: float
    """At `at_s`; decays from then on."""
    at_s: float


class ArrivalRates:
    """Exponentially weighted moving averages by model key. Cheap to record: one exponential."""

    def __init__(self) -> None:
        self._averages: dict[str, _Average] = {}
        self._observed_s = 0.0
        """Time that the averages cover: they are too low by what is missing of the window."""
        self._last_s = inf

    def record(self, key: str, now_s: float) -> None:
        """Count an arrival. A clock that was set back stops the averages' decay once."""
        if now_s > self._last_s:
            self._observed_s += now_s - self._last_s
        self._last_s = now_s
        average = self._averages.get(key)
        if average is None:
            average = self._averages[key] = _Average(0.0, now_s)
        passed_s, average.at_s = now_s - average.at_s, now_s
        decay = exp(-passed_s / WINDOW_S) if passed_s > 0.0 else 1.0  # `_decay`, without a call
        average.per_s = average.per_s * decay + 1.0 / WINDOW_S

    def rate_per_s(self, key: str, now_s: float) -> float:
        average = self._averages.get(key)
        if average is None:
            return 0.0
        return average.per_s * _decay(now_s - average.at_s) / self._covered()

    def rates_per_s(self, now_s: float) -> dict[str, float]:
        """All rates now; models that have nearly none are forgotten."""
        if now_s > self._last_s:
            self._observed_s += now_s - self._last_s
        self._last_s = now_s
        covered = self._covered()
        found: dict[str, float] = {}
        forgotten = []
        for key, average in self._averages.items():
            rate = average.per_s * _decay(now_s - average.at_s)
            if average.at_s > now_s:  # the clock was set back
                average.per_s, average.at_s = rate, now_s
            if rate < _MIN_RATE_PER_S:
                forgotten.append(key)
            else:
                found[key] = rate / covered
        for key in forgotten:
            del self._averages[key]
        return found

    def drop(self, key: str) -> None:
        self._averages.pop(key, None)

    def models(self) -> KeysView[str]:
        """The models that have had requests lately."""
        return self._averages.keys()

    def _covered(self) -> float:
        """Share of the window's weight that lies within the time observed."""
        return 1.0 - exp(-max(_MIN_OBSERVED_S, self._observed_s) / WINDOW_S)


def _decay(passed_s: float) -> float:
    return exp(-passed_s / WINDOW_S) if passed_s > 0 else 1.0


def blended_rates(own: Mapping[str, float], expected: Mapping[str, float]) -> dict[str, float]:
    """Own rates with published forecasts of the whole pool's arrivals.

    A gateway among several sees only its share of the arrivals; the ratio of the sums over the
    models that both know scales its rates, up only. A forecast is a prior for `_FORECAST_WINDOW_S`
    (a gamma distribution of the rate); one that is no positive number is ignored.
    """
    usable = {key: rate for key, rate in expected.items() if 0 <= rate < inf}
    if not usable:
        return dict(own)
    scale = _scale(own, usable)
    weight = _FORECAST_WINDOW_S / (WINDOW_S + _FORECAST_WINDOW_S)
    found = {key: rate * scale for key, rate in own.items()}
    for key, rate in usable.items():
        found[key] = (1.0 - weight) * found.get(key, 0.0) + weight * rate
    return found


def _scale(own: Mapping[str, float], expected: Mapping[str, float]) -> float:
    """How much larger the pool's arrivals are than those that this process saw; at least 1."""
    known = [key for key in own if key in expected]
    seen, total = sum([own[key] for key in known]), sum([expected[key] for key in known])
    return min(max(1.0, total / seen), _MAX_SCALE) if seen > 0 else 1.0


_MAX_STEPS: Final = 64
_TOLERANCE: Final = 1e-4
"""Relative; rates are known far less exactly."""


def characteristic_time_s(
    rates_per_s: Sequence[float], sizes_bytes: Sequence[float], capacity_bytes: float
) -> float:
    """How long a model stays in memory after its last request, if the oldest use is evicted.

    Che, Tung, Wang 2002, "Hierarchical web caching systems: modeling, design and experimental
    results", with sizes: the T at which sum(size * (1 - exp(-rate * T))) is the capacity. Infinite
    where all models with requests fit. Rates and sizes that are not positive numbers count as
    none.
    """
    models = [
        (rate, size)
        for rate, size in zip(rates_per_s, sizes_bytes, strict=True)
        if 0 < rate < inf and 0 < size < inf
    ]
    if not capacity_bytes > 0:
        return 0.0
    if sum([size for _, size in models]) <= capacity_bytes:
        return inf
    # Newton's method from the left: the filled memory is concave in T, so no step overshoots.
    time_s = 0.0
    for _ in range(_MAX_STEPS):
        left, slope = capacity_bytes, 0.0
        for rate, size in models:
            absent = size * exp(-rate * time_s)
            left -= size - absent
            slope += rate * absent
        if left <= _TOLERANCE * capacity_bytes or slope <= 0.0:
            break
        time_s += left / slope
    return time_s


def eviction_loss_s(
    reload_s: float, rate_per_s: float, characteristic_s: float, copies: int, serve_s: float = inf
) -> float:
    """What evicting one of a model's `copies` costs its later requests, in seconds of waiting.

    The model is wanted again before its time is over with probability 1 - exp(-rate * T); that
    request then waits for the load, and those that arrive meanwhile for half of it on average.
    Where other copies serve, a request misses this one only while all of them are busy, each
    request for `serve_s`; without that they are. Values that are not positive numbers cost nothing,
    except an infinite characteristic time.
    """
    if not (0 < reload_s < inf and 0 < rate_per_s < inf and characteristic_s > 0):
        return 0.0
    wanted = 1.0 - exp(-rate_per_s * characteristic_s)
    loss_s = reload_s * wanted * (1.0 + rate_per_s * reload_s / 2.0)
    if not isfinite(loss_s):
        return 0.0
    if copies <= 1:
        return loss_s
    return loss_s * busy_probability(copies - 1, rate_per_s * serve_s if serve_s > 0 else inf)


def busy_probability(servers: int, load: float) -> float:
    """Probability that a request finds all servers busy, where requests need `load` of them.

    Erlang's C formula (Erlang 1917, "Solution of some problems in the theory of probabilities of
    significance in automatic telephone exchanges"): arrivals and services are independent. 1 where
    the load is not below the number of servers.
    """
    if not load < servers:
        return 1.0
    blocked = 1.0  # Erlang's B formula, server by server
    for number in range(1, servers + 1):
        blocked = load * blocked / (number + load * blocked)
    return blocked / (1.0 - load / servers * (1.0 - blocked))


REFRESH_S: Final = 1.0
_REFRESH_S_PER_MODEL: Final = 5e-5
"""With new models, a refresh at most this often: some percent of the time that it takes."""
_SPARE_REFRESH_S: Final = 0.02
"""Interval at which the pool's spare room is counted after changes: that reads all models."""


@dataclass(frozen=True, slots=True)
class _Victim:
    """A warm model that an eviction may choose."""

    key: str
    loss_s: float
    """What later requests lose."""
    size_bytes: int
    queued_loss_s: float
    """What each of the model's queued requests loses."""
    serve_s: float
    """Time in which one of them is served."""
    asked_for: float
    """Requests of this gateway while it is loaded again, as lately; 0 with other copies."""


@dataclass(slots=True)
class QueueLoss:
    """What requests that are queued for the victims of an eviction lose by it."""

    loss_s: float = 0.0
    served_in_s: float = 0.0
    """Time until they are served if nothing is evicted."""
    asked_for: float = 0.0
    """Requests of this gateway for the victims while one is loaded, to compare with its queue."""


@dataclass(frozen=True, slots=True)
class _Device:
    """The device of one pod."""

    memory_bytes: int
    free_bytes: int
    evictable_bytes: int
    loads: int
    """Loads in progress."""
    victims: list[_Victim]
    """By loss per byte."""
    waits_per_s: float
    """Requests for the pod's warm models that would find no slot, if one were held all the time."""

    def short_bytes(self, size_bytes: int) -> int:
        """What a load of this size must evict; not positive where there is room."""
        return min(size_bytes, self.memory_bytes) - self.free_bytes

    def price_s(self, size_bytes: int) -> float:
        """What a load of this size evicts; 0 where there is room.

        Infinite while models that are being loaded take the memory that it needs.
        """
        short = self.short_bytes(size_bytes)
        if short <= 0:
            return 0.0
        if short > self.evictable_bytes and self.loads:
            return inf
        price_s = 0.0
        for victim in self.victims:
            price_s += victim.loss_s
            short -= victim.size_bytes
            if short <= 0:
                break
        return price_s

    def queue_loss(self, size_bytes: int, depths: Mapping[str, int]) -> QueueLoss:
        """What requests queued for the victims of a load of this size lose."""
        found = QueueLoss()
        short = self.short_bytes(size_bytes)
        for victim in self.victims:
            if short <= 0:
                break
            depth = depths.get(victim.key, 0)
            found.loss_s += depth * victim.queued_loss_s
            found.served_in_s += depth * victim.serve_s
            found.asked_for += victim.asked_for
            short -= victim.size_bytes
        return found

    def slot_price_s(self, held_s: float) -> float:
        """What requests for the pod's models lose while one of its slots is held.

        Each that finds all others held waits for half of that time on average.
        """
        return self.waits_per_s * held_s * held_s / 2.0

    def delay_s(self, held_s: float, alone_s: float) -> float:
        """What a load delays: requests that need its slot, and the loads that share its link.

        It makes each of those longer by what it takes alone.
        """
        return self.slot_price_s(held_s) + self.loads * alone_s


@dataclass(eq=False)
class EvictionPrices:
    """Prices for one cluster state, which refreshes them: see `ClusterState.prices_at`."""

    pods: PodIndex
    residency: ResidencyIndex
    arrivals: ArrivalRates
    queue_depths: Mapping[str, int]

    def __post_init__(self) -> None:
        self.base_of: Callable[[str], str] | None = None
        """The key of an adapter's base; empty: it has none. None: there are no adapters."""
        self.expected_rates = ExpectedRates()
        """Published arrivals of the whole pool; too old ones are ignored."""
        self.characteristic_s = inf
        self._rates: dict[str, float] = {}
        self._own_rates: dict[str, float] = {}
        self._devices: dict[str, _Device] = {}
        self._mean_bytes = 0
        self._models = 0
        """Models with arrivals at the last refresh."""
        self._refreshed_s: float | None = None
        self._is_held = False
        self._spare_bytes = 0
        self._spare_s: float | None = None

    def rate_per_s(self, key: str) -> float:
        """The model's arrivals, as of the last refresh."""
        return self._rates.get(key, 0.0)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Prices stay as of their last refresh: reads that decide nothing change no decision."""
        self._is_held, spare = True, (self._spare_s, self._spare_bytes)
        try:
            yield
        finally:
            self._is_held, (self._spare_s, self._spare_bytes) = False, spare

    def refresh(self, now_s: float) -> None:
        """Take the latest rates, once per `REFRESH_S`, and sooner while models come new."""
        if self._is_held:
            return
        models = len(self.arrivals.models())
        interval_s = REFRESH_S
        if models != self._models:
            interval_s = min(REFRESH_S, _REFRESH_S_PER_MODEL * models)
        if self._refreshed_s is not None and 0 <= now_s - self._refreshed_s < interval_s:
            return
        self._refreshed_s, self._models = now_s, models
        self._own_rates = self.arrivals.rates_per_s(now_s)
        self._rates = blended_rates(self._own_rates, self.expected_rates.at(now_s))
        sizes = self.residency.device_bytes
        self._mean_bytes = sum(sizes.values()) // len(sizes) if sizes else 0
        self.characteristic_s = characteristic_time_s(
            list(self._rates.values()),
            [sizes.get(key, self._mean_bytes) for key in self._rates],
            sum([pod.memory_bytes for pod in self.pods.values() if pod.is_accepting]),
        )
        self._devices.clear()

    def size_bytes(self, key: str, pod: PodState | None = None) -> int:
        """The model's memory on a device: as last loaded, else the mean of the others, else 0.

        At a pod, of an adapter with its base, unless that is there.
        """
        size_bytes = self.residency.device_bytes.get(key, self._mean_bytes)
        if pod is not None and self.base_of is not None:
            base = self.base_of(key)
            if base and base not in self.residency.on_device(pod.name):
                size_bytes += self.size_bytes(base)
        return size_bytes

    def load_cost_s(self, pod: PodState, size_bytes: int, load_s: float) -> float:
        """What a load of this size costs others: `price_s`, `delay_s` and `queue_loss`."""
        device = self.device(pod)
        cost_s = device.price_s(size_bytes) + device.delay_s(load_s, load_s)
        if self.queue_depths:
            cost_s += device.queue_loss(size_bytes, self.queue_depths).loss_s
        return cost_s

    def price_s(self, pod: PodState, key: str) -> float:
        """What a load of this model evicts at the pod; see `_Device.price_s`."""
        return self.device(pod).price_s(self.size_bytes(key, pod))

    def delay_s(self, pod: PodState, held_s: float) -> float:
        """What a load delays that is forecast beside those in progress; see `_Device.delay_s`."""
        device = self.device(pod)
        return device.delay_s(held_s, held_s / (1 + device.loads))

    def queue_loss(self, pod: PodState, key: str) -> QueueLoss:
        """What requests queued for the victims of a load of this model lose."""
        return self.device(pod).queue_loss(self.size_bytes(key, pod), self.queue_depths)

    def later_gain_s(self, key: str, load_s: float) -> float:
        """What expected requests lose less with a first copy: its price, from the other side."""
        return eviction_loss_s(load_s, self.rate_per_s(key), self.characteristic_s, 1)

    def has_room(self, pod: PodState, key: str) -> bool:
        """Whether a load of this model evicts none."""
        return self.device(pod).short_bytes(self.size_bytes(key, pod)) <= 0

    def is_spare(self, key: str, now_s: float) -> bool:
        """Whether a further copy leaves room for the models with requests that are nowhere yet."""
        if self._spare_s is None or not 0 <= now_s - self._spare_s < _SPARE_REFRESH_S:
            self._spare_s = now_s
            free = [self.device(pod).free_bytes for pod in self.pods.values()]
            wanted = self.arrivals.models() | self._rates.keys()
            nowhere = [each for each in wanted if not self.residency.copies(each)]
            self._spare_bytes = sum([each for each in free if each > 0]) - sum(
                [self.size_bytes(each) for each in nowhere]
            )
        return self.size_bytes(key) <= self._spare_bytes

    def device(self, pod: PodState) -> _Device:
        if self.residency.device_changes:
            for name in self.residency.device_changes:
                self._devices.pop(name, None)
            self.residency.device_changes.clear()
        found = self._devices.get(pod.name)
        if found is None:
            found = self._devices[pod.name] = self._price_device(pod)
        return found

    def _price_device(self, pod: PodState) -> _Device:
        free_bytes, victims, loads = pod.memory_bytes, [], 0
        arrivals_per_s = busy_slots = 0.0
        for key, residency in self.residency.on_device(pod.name).items():
            size_bytes = self.size_bytes(key)
            free_bytes -= size_bytes
            if residency.is_warm:
                measured, rate = pod.estimates[key], self.rate_per_s(key)
                copies = self.residency.copies(key)
                victims.append(self._victim(pod, key, size_bytes, rate, copies))
                arrivals_per_s += rate / copies
                busy_slots += rate / copies * measured.stages.hold_s
            else:
                loads += 1
        victims.sort(key=lambda each: each.loss_s / max(1, each.size_bytes))
        evictable_bytes, others = sum([each.size_bytes for each in victims]), pod.slots - 1
        if others:  # arrivals times the probability that all of these slots are held
            arrivals_per_s *= min(1.0, busy_slots / others) ** others
        return _Device(
            pod.memory_bytes, free_bytes, evictable_bytes, loads, victims, arrivals_per_s
        )

    def _victim(
        self, pod: PodState, key: str, size_bytes: int, rate: float, copies: int
    ) -> _Victim:
        measured = pod.estimates[key]
        stages, reload_s = measured.stages, _reload_s(measured, pod.info.link_bytes_per_s)
        serve_s = max(stages.share_s, stages.hold_s / pod.slots)
        return _Victim(
            key,
            eviction_loss_s(reload_s, rate, self.characteristic_s, copies, serve_s),
            size_bytes,
            reload_s if copies <= 1 else 0.0,
            serve_s / max(1, copies),
            self._own_rates.get(key, 0.0) * reload_s if copies <= 1 else 0.0,
        )


def _reload_s(measured: ModelEstimates, link_bytes_per_s: float | None) -> float:
    """Time to load a model again: from the nearest tier below a device that it was loaded from."""
    nearer = measured.get("load:host") or measured.get("load:disk")
    return (nearer or measured.load_from(Tier.REMOTE, link_bytes_per_s)).seconds
