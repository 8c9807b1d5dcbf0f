"""Liu 2025, section 3.1, simulated: 100 concurrent requests to T5-small on one to four pods."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np

from autoscaler.forecasting.counts import Counts
from autoscaler.planning.pool_view import Limits
from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from load.simulator.simulated_cluster import SimulatedCluster
from load.simulator.simulation import Simulation
from load.traces.batches import arrival_batch
from pilotlight.demo.runs import TimedResponse
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, RoutingPolicy, Tier
from registry.domain.profile import ProfilePoint
from research.experiments.elastic.kpa import KpaParams
from research.experiments.elastic.pod_scaler import Arrivals, PodScaler, Rule
from research.experiments.elastic.rules import KnativeRule, PredictiveRule
from research.experiments.liu.ray_serve import RayServeParams, RayServeState, ray_serve_replicas
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
            cluster.open_requests, self._replicas, self._state, now_s, self._params
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
