"""Two gateways with different prices in front of one pool: no models to and fro, no failures.

Each has a routing core, arrivals and prices of its own; both see the pods' state, as the registry
publishes it. The simulator's gateway is the driver of both.
"""

import random
from collections.abc import Callable

import pytest

from gateway.dispatch.placer import Placer
from gateway.errors import Rejected
from load.simulator.pods.simulated_request import SimulatedRequest
from load.simulator.simulation import Simulation
from registry.domain.cluster import ClusterState
from registry.domain.demand import MAX_AGE_S, ExpectedRates
from registry.domain.model import RoutingPolicy
from registry.domain.prices import EvictionPrices
from tests.load.simulator.small_cluster import ScriptedAutoscaler, cluster, records, took_s
from tests.load.simulator.traces import Row, trace

Publish = Callable[[float, list[ClusterState]], None]

MODELS = 8
UNTIL_S = 80.0
RATES_PER_S = [4.0 / (number + 1) for number in range(MODELS)]


class TwoPlacers:
    """Sends requests to two placers in turn; the interface of one."""

    def __init__(self, placers: list[Placer[SimulatedRequest]]) -> None:
        self._placers = placers
        self._placed = 0

    def place(self, request: SimulatedRequest) -> Rejected | None:
        self._placed += 1
        return self._placers[self._placed % 2].place(request)

    def notify_change(self) -> None:
        for each in self._placers:
            each.notify_change()


def _second_view(state: ClusterState) -> ClusterState:
    view = ClusterState()
    view.pods, view.models, view.residency = state.pods, state.models, state.residency
    view.measurements, view.profiles = state.measurements, state.profiles
    view.eviction_prices = EvictionPrices(
        view.pods, view.residency, view.arrivals, view.queue_depths
    )
    return view


def _keys(states: list[ClusterState]) -> list[str]:
    return sorted(record.spec.key for record in states[0].models.values())


def _rates(states: list[ClusterState], factor: float, *, is_reversed: bool) -> dict[str, float]:
    rates = RATES_PER_S[::-1] if is_reversed else RATES_PER_S
    return {key: factor * rate for key, rate in zip(_keys(states), rates, strict=True)}


def _one_knows_nothing(now_s: float, states: list[ClusterState]) -> None:
    states[0].expected_rates = ExpectedRates(_rates(states, 1.0, is_reversed=False), now_s)


def _one_is_out_of_date(now_s: float, states: list[ClusterState]) -> None:
    """The second never hears of the first rates, reversed, again; they age."""
    _one_knows_nothing(now_s, states)
    if now_s < MAX_AGE_S / 2:
        states[1].expected_rates = ExpectedRates(_rates(states, 10.0, is_reversed=True), now_s)


def _restarted(now_s: float, states: list[ClusterState]) -> None:
    """A new autoscaler without history publishes a tenth, and all models alike; one is late."""
    first = ExpectedRates(_rates(states, 10.0, is_reversed=True), now_s)
    second = ExpectedRates(dict.fromkeys(_keys(states), 0.1), now_s)
    states[0].expected_rates = first if now_s < 40.0 else second
    states[1].expected_rates = first if now_s < 55.0 else second


def _contrary(now_s: float, states: list[ClusterState]) -> None:
    for state, is_reversed in zip(states, (False, True), strict=True):
        state.expected_rates = ExpectedRates(_rates(states, 10.0, is_reversed=is_reversed), now_s)


def _run(rows: list[Row], publish: Publish | None) -> tuple[float, int]:
    """Mean latency and loads of two gateways; of one that knows no forecasts without `publish`."""
    node = {"pods": [{"memory": "360MB", "slots": 4}], "count": 2}
    plan = cluster(node, {"count": MODELS, "load": {"remote": "500ms", "disk": "500ms"}})
    publish_to = publish or (lambda now_s, states: None)
    scaler = ScriptedAutoscaler(
        5.0, lambda state, actions: publish_to(run.events.now_s, states), repeat=True
    )
    run = Simulation(plan, trace(rows), RoutingPolicy.AUTO, autoscaler=scaler)
    states = [run.registry.state]
    if publish is not None:
        gateway = run._cluster.gateway
        states.append(_second_view(states[0]))
        placers = [Placer(each, gateway, run.events, run.events.now) for each in states]
        gateway.placer = TwoPlacers(placers)  # type: ignore[assignment]
    found = records(run)
    assert {row["status"] for row in found} == {200}
    return sum(map(took_s, found)) / len(found), run.summary.loads_started.total()


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    rng, found = random.Random(5), []
    for number, rate in enumerate(RATES_PER_S):
        at_s = rng.expovariate(rate)
        while at_s < UNTIL_S:
            found.append((at_s, f"m-{number}"))
            at_s += rng.expovariate(rate)
    return sorted(found)


@pytest.fixture(scope="module")
def with_one(rows: list[Row]) -> tuple[float, int]:
    return _run(rows, None)


@pytest.mark.parametrize(
    "publish", [_one_knows_nothing, _one_is_out_of_date, _restarted, _contrary]
)
def test_gateways_of_different_prices_do_not_evict_each_others_models(
    publish: Publish, rows: list[Row], with_one: tuple[float, int]
) -> None:
    mean_s, loads = _run(rows, publish)
    assert mean_s <= 1.15 * with_one[0]
    assert loads <= 1.15 * with_one[1]
