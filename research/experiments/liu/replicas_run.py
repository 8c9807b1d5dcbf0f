"""Liu 2025, section 3.1, simulated: 100 concurrent requests to T5-small on one to four pods."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Final

import numpy as np

from autoscaler.forecasting.counts import Counts
from autoscaler.policy import Limits
from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from load.simulator.simulated_cluster import SimulatedCluster
from load.simulator.simulation import Simulation
from load.traces.batches import arrival_batch
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, RoutingPolicy, Tier
from registry.domain.pod import ProfilePoint
from research.demo import TimedResponse
from research.experiments.elastic.kpa import KpaParams
from research.experiments.elastic.pod_scaler import Arrivals, PodScaler, Rule
from research.experiments.elastic.rules import KnativeRule, PredictiveRule
from research.experiments.liu.simulated import run_responses

REQUESTS: Final = 100
MAX_PODS: Final = 4
LOAD_S: Final = {Tier.REMOTE: 2.788, Tier.DISK: 2.0 - 0.923, Tier.HOST: 2.0 - 0.923}
"""Initialisation of the first replica (3.1), and of the later ones, whose first requests take 2 s:
the model's files are on the machine by then."""
INFER_S: Final = 0.923
POD_START_S: Final = 3.0
"""The thesis does not state it; the same for every rule."""
RAY_SERVE: Final = "ray serve"
KNATIVE: Final = "knative"
PREDICTIVE: Final = "predictive"
RULES: Final = (RAY_SERVE, KNATIVE, PREDICTIVE)
_EPOCH_S: Final = 3600.0
_MODEL: Final = ModelName("default", "t5-small")


@dataclass(frozen=True, slots=True)
class RayServeParams:
    """Ray Serve's default rule, which Liu ran. Times in seconds.

    Replicas keep the mean number of ongoing requests of the look-back window at its target; a
    change is made once it was wanted for its whole delay. Source: Ray Serve's documentation of
    `AutoscalingConfig` (2.x), with its defaults; the thesis sets 1 to 4 replicas and target 2.
    """

    min_replicas: int = 1
    max_replicas: int = 4
    target_ongoing: float = 2.0
    """Ongoing requests per replica, queued ones included."""
    metrics_interval_s: float = 10.0
    """Between two reports of the ongoing requests."""
    look_back_s: float = 30.0
    upscale_delay_s: float = 30.0
    downscale_delay_s: float = 600.0


@dataclass(frozen=True, slots=True)
class RayServeState:
    reports: tuple[tuple[float, float], ...] = ()
    """Time and ongoing requests, of the look-back window."""
    wanted_since_s: float | None = None
    """Since when more, or fewer, replicas were wanted without a break; None: as many as now."""
    is_up: bool = False


def ray_serve_replicas(
    ongoing: float, current: int, state: RayServeState, now_s: float, params: RayServeParams
) -> tuple[int, RayServeState]:
    """Replicas to have, and the next state. Call it more often than reports are made."""
    reports = tuple(each for each in state.reports if each[0] > now_s - params.look_back_s)
    last_s = state.reports[-1][0] if state.reports else 0.0
    if now_s - last_s >= params.metrics_interval_s:
        reports = (*reports, (now_s, ongoing))
    if not reports:
        return current, RayServeState(reports)
    mean = sum(count for _, count in reports) / len(reports)
    wanted = ceil(mean / params.target_ongoing)
    wanted = min(max(wanted, params.min_replicas), params.max_replicas)
    if wanted == current:
        return current, RayServeState(reports)
    is_up = wanted > current
    is_same = state.wanted_since_s is not None and state.is_up == is_up
    since_s = state.wanted_since_s if is_same and state.wanted_since_s is not None else now_s
    delay_s = params.upscale_delay_s if is_up else params.downscale_delay_s
    if now_s - since_s >= delay_s:
        return wanted, RayServeState(reports)
    return current, RayServeState(reports, since_s, is_up)


@dataclass(frozen=True, slots=True)
class ReplicasRun:
    """One run of concurrent requests that are sent at time 0."""

    responses: tuple[TimedResponse, ...]

    @property
    def by_pod(self) -> list[list[TimedResponse]]:
        """Responses of each pod in the order of their ends; pods by their first response."""
        pods: dict[str, list[TimedResponse]] = {}
        for each in sorted(self.responses, key=lambda response: response.latency_s):
            pods.setdefault(each.pod, []).append(each)
        return list(pods.values())

    @property
    def alone(self) -> int:
        """Requests that the first pod served before another pod began to."""
        first, *others = self.by_pod
        begin_s = min((each[0].latency_s - service_s(each[0]) for each in others), default=inf)
        return sum(each.latency_s <= begin_s for each in first)

    @property
    def total_s(self) -> float:
        """Until the last response."""
        return max(each.latency_s for each in self.responses)


def service_s(response: TimedResponse) -> float:
    """The time of a request without the gateway's queue, as the thesis's figure 3.1 shows it."""
    return response.latency_s - response.stages_s.get("queue", 0.0)


class RayServeRule:
    """Implements `research.experiments.elastic.pod_scaler.Rule`."""

    interval_s = 0.1

    def __init__(self, params: RayServeParams) -> None:
        self._params = params
        self._state = RayServeState()
        self._replicas = params.min_replicas

    def plan(self, now_s: float, arrivals: Arrivals, cluster: SimulatedCluster) -> int:
        self._replicas, self._state = ray_serve_replicas(
            cluster.gateway.open_total, self._replicas, self._state, now_s, self._params
        )
        return self._replicas


def simulate_replicas(rule: str) -> ReplicasRun:
    """All requests at once, to a cold model on one running pod."""
    pods = [f"pod-{number}" for number in range(MAX_PODS)]
    plan = _cluster(pods, rule)
    trace = [arrival_batch(np.zeros(REQUESTS), model=_MODEL.name)]
    scaler = PodScaler(_rule(rule, plan), pods, start_s=POD_START_S)
    return ReplicasRun(tuple(run_responses(Simulation(plan, trace, seed=1, autoscaler=scaler))))


def _rule(name: str, plan: ClusterPlan) -> Rule:
    if name == RAY_SERVE:
        return RayServeRule(RayServeParams(max_replicas=MAX_PODS))
    if name == KNATIVE:
        return KnativeRule(KpaParams(slots=1, max_pods=MAX_PODS), min_pods=1)
    counts = Counts()
    counts.add_model(str(_MODEL))
    limits = Limits(1, MAX_PODS)
    return PredictiveRule(plan, limits, pods=1, counts=counts, epoch_s=_EPOCH_S)


def _cluster(pods: Sequence[str], rule: str) -> ClusterPlan:
    """One machine, whose pods share the downloaded files."""
    routing = RoutingPolicy.AUTO if rule == PREDICTIVE else RoutingPolicy.LEAST_LOADED
    policy = ModelPolicy(
        routing=routing, max_batch_size=1, queue_depth=10_000, queue_timeout_s=600.0
    )
    model = ModelPlan(
        ModelSpec(_MODEL, "s3://simulated/t5-small", policy=policy),
        infer=(ProfilePoint(1, INFER_S),),
        preprocess_s=0.0,
        postprocess_s=0.0,
        assets_s=0.0,
        load_s=LOAD_S,
    )
    plans = [
        PodPlan(name, slots=1, start_s=0.0 if number == 0 else inf)
        for number, name in enumerate(pods)
    ]
    return ClusterPlan((NodePlan("node", tuple(plans)),), (model,))
