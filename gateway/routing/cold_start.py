"""The option of a load: at which pod, what it costs, and the credit that earlier requests left.

A new copy also serves later requests: the time that earlier requests lost for lack of a copy is
subtracted from the cost of a load into free memory (`ColdStartCredit`), unless the
request would then miss its deadline.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final

from gateway.routing.decision import ColdStartLoss, Reason, RequestView, RoutingOption
from gateway.routing.latency_model import run_at
from gateway.routing.pod_selection import cheapest_load
from registry.domain.cluster import ClusterState
from registry.domain.model import Tier
from registry.domain.pod_state import LoadMode, PodState

MAX_LOADS_WAITED: Final = 10.0
"""Loads after which a request no longer waits for requests of warm models. Simulated: 2 to 5 cost 3
to 7 % in mean latency."""


def cold_start(
    request: RequestView,
    cluster: ClusterState,
    warm: Sequence[PodState],
    warming: Sequence[PodState],
    now_s: float,
) -> RoutingOption | None:
    """A load at a pod that neither holds nor loads the model, if one has a slot and memory.

    A further copy only where its time is measured, or at least that of a load from afar; one that
    needs an eviction gets no credit for what earlier requests lost.
    """
    prices = cluster.prices_at(now_s)
    pod = _best_cold(request, cluster, {pod.name for pod in (*warm, *warming)}, now_s)
    if pod is None:
        return None
    forecast = run_at(pod, request, cluster, now_s)
    is_further = bool(warm or warming)
    measured = pod.estimates[request.key]
    is_bounded = measured.stages.is_measured and measured.load_from(Tier.REMOTE, None).is_measured
    if is_further and not (forecast.is_measured or is_bounded):
        return None
    price_s = prices.price_s(pod, request.key) + prices.queue_loss(pod, request.key).loss_s
    load_s = forecast.seconds - measured.stages_of(request.size_class).hold_s
    deadline_s = request.deadline_s
    is_late = deadline_s is not None and now_s + forecast.seconds > deadline_s
    gain_s = load_s if deadline_s is None else min(load_s, deadline_s - request.arrival_s)
    has_room = prices.has_room(pod, request.key)
    if is_further and has_room and not prices.is_spare(request.key, now_s):
        return None
    return RoutingOption(
        "cold start",
        forecast,
        Reason.COLD_WARM_BUSY if is_further else Reason.COLD,
        pod.name,
        pod.name,
        LoadMode.LOAD,
        max_other_copies=len(warm) + len(warming),
        credit_s=request.lost_s if has_room and not is_late else 0.0,
        delays_s=forecast.delays_s
        + prices.delay_s(pod, load_s)
        + (queue_cost_s(load_s, request, cluster) if is_further else 0.0),
        evicts_s=price_s,
        leaves_s=-(
            _saved_s(pod, load_s, request, (*warm, *warming), prices.rate_per_s(request.key))
            if is_further
            else gain_s * request.behind + prices.later_gain_s(request.key, gain_s)
        ),
    )


def evicts_too_soon(
    cold: RoutingOption, request: RequestView, cluster: ClusterState, now_s: float
) -> bool:
    """True if a first copy should wait until the requests queued for its victims are served.

    Exhaustive service, as polling systems that switch at a cost (Takagi 1988, "Queuing analysis of
    polling models"): the victims' requests lose the time of another load each; those of this
    model, if they wait, the time in which the others are served, and what earlier ones lost that
    were refused. None waits for more than `MAX_LOADS_WAITED` loads. Or until more requests gather
    for it, which share the load: as long as the model's `max-load-wait` says, and for the time of
    one load while the victims expect more requests in that time than wait for this model.
    """
    victims = cluster.eviction_prices.queue_loss(cluster.pods[cold.predict], request.key)
    queued = request.ahead + request.behind + 1
    load_s, gather_s = cold.forecast.seconds, request.max_load_wait_s
    if cold.forecast.is_measured and victims.asked_for > queued:
        gather_s = max(gather_s, load_s)
    begun_s = min(request.arrival_s, now_s - request.stalled_s)  # later ones may come first
    until_s = begun_s + gather_s
    deadline_s = inf if request.deadline_s is None else request.deadline_s
    if cold.evicts_s > 0.0 and now_s < until_s <= deadline_s - load_s:
        return True
    if now_s - begun_s >= MAX_LOADS_WAITED * load_s:
        return False
    return victims.loss_s > queued * victims.served_in_s + request.lost_s


def _saved_s(
    pod: PodState,
    load_s: float,
    request: RequestView,
    holders: Sequence[PodState],
    arrivals_per_s: float,
) -> float:
    """What the model's other queued requests gain by a further copy.

    A queue of n that c copies work off at a rate of r each takes n^2 / 2rc; after the load, c + 1
    copies work off what is left of it and what has arrived meanwhile.
    """
    queued = request.ahead + request.behind
    if not queued:
        return 0.0
    times = pod.estimates[request.key].stages
    rate = 1.0 / max(times.share_s, times.hold_s / pod.slots)
    copies = len(holders)
    left = queued + (arrivals_per_s - copies * rate) * load_s
    return left * left / 2.0 / rate * (1.0 / copies - 1.0 / (copies + 1)) if left > 0 else 0.0


def _best_cold(
    request: RequestView, cluster: ClusterState, excluded: set[str], now_s: float
) -> PodState | None:
    """The cheapest cold start of each kind of accelerator; of these, the first to respond."""
    find = partial(cheapest_load, cluster, request.key, request.draw, excluded)
    if request.deadline_s is not None:
        hold_s = cluster.measured(request.key).stages_of(request.size_class).hold_s
        find = partial(
            find,
            left_s=request.deadline_s - now_s - hold_s,
            late_s=request.deadline_s - request.arrival_s,
        )
    if len(cluster.pods.kinds) <= 1:
        return find()
    found = [pod for kind in cluster.pods.kinds if (pod := find(kind))]
    price_s = cluster.eviction_prices.price_s
    return min(
        found,
        key=lambda pod: run_at(pod, request, cluster, now_s).seconds + price_s(pod, request.key),
        default=None,
    )


def queue_cost_s(held_s: float, request: RequestView, cluster: ClusterState) -> float:
    """What queued requests lose while one of the pool's slots is held."""
    if not request.queued:
        return 0.0
    return held_s * request.queued / sum([pod.slots for pod in cluster.pods.values()])


@dataclass(slots=True)
class ColdStartCredit:
    """Seconds that one model's requests at one gateway lost; callers pass the time in.

    Ski rental (Karlin, Manasse, McGeoch, Owicki 1990, "Competitive randomized algorithms for
    non-uniform problems"): queueing or sharing a device costs a little each time, a load costs much
    once. When the losses reach the cost of a load, `auto` starts one; such loads never cost more
    than was lost without them. A loss counts once it is one load time old, since no load could have
    avoided it sooner. A request that is rejected because the load would take too long loses the
    time to its deadline.
    """

    started_s: float
    """Start of the latest span."""
    span_s: float
    counted_s: float = 0.0
    """Credit towards the next load, as of the last `advance`."""
    previous_s: float = 0.0
    """Of the span before the latest; each is one load time long."""
    latest_s: float = 0.0

    def advance(self, now_s: float) -> None:
        """Count losses that are at least one span old; a clock set back begins a span."""
        passed_s = now_s - self.started_s
        if passed_s < 0:
            self.started_s = now_s
        if passed_s < self.span_s:
            return
        self.counted_s += self.previous_s
        self.previous_s, self.latest_s = self.latest_s, 0.0
        if passed_s >= 2 * self.span_s:
            self.counted_s += self.previous_s
            self.previous_s = 0.0
        self.started_s = now_s

    def add(self, loss: ColdStartLoss, now_s: float) -> None:
        self.span_s = loss.load_s
        self.advance(now_s)
        self.latest_s += loss.seconds
