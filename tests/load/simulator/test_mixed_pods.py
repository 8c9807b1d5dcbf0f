"""The sample cluster with two kinds of pods: shares of requests, and the effect of speed."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from load.simulator.cluster.cluster_file import cluster_of, read_document
from load.simulator.simulation import Simulation
from load.trace_spec import open_trace
from registry.domain.model import RoutingPolicy

SAMPLE = Path(__file__).parents[3] / "manifests/simulator/mixed-pods.yaml"
TRACE = "poisson:rate=20,models=10,zipf=0.9,duration=1m"


def fast_share(document: Any, policy: RoutingPolicy) -> float:
    """Share of the requests that is inferred at the two pods of six named fast."""
    run = Simulation(cluster_of(document, source="sample"), open_trace(TRACE, seed=1), policy, 1)
    pods = Counter(pod for batch in run for pod in batch.column("predict_pod").to_pylist())
    assert run.summary.statuses == {200: pods.total()}
    return sum(pods[f"fast-{number}"] for number in range(2)) / pods.total()


def fast_shares(policy: RoutingPolicy) -> list[float]:
    """With fast pods as fast as the others, and with three times their speed."""
    document = read_document(SAMPLE)
    (pods,) = document["nodes"][0]["pods"]
    shares = []
    for pods["speed"] in (1, 3):
        shares.append(fast_share(document, policy))
    return shares


def test_sample_has_two_kinds_of_pods() -> None:
    plan = cluster_of(read_document(SAMPLE), source="sample")
    kinds = Counter((pod.speed, pod.slots) for node in plan.nodes for pod in node.pods)
    assert kinds == {(3.0, 8): 2, (1.0, 2): 4}
    assert {node.object_storage_bytes_per_s for node in plan.nodes} == {4e8, 1e8}
    names = {plan.spec.name.name for plan in plan.models}
    assert names == {f"model-{number}" for number in range(10)}, "as generated traces name them"


@pytest.mark.parametrize(
    "policy",
    [
        RoutingPolicy.AUTO,
        RoutingPolicy.COLOCATION,
        RoutingPolicy.REMOTE_PROXY,
        RoutingPolicy.LEAST_LOADED,
    ],
)
def test_faster_pods_serve_more_requests(policy: RoutingPolicy) -> None:
    as_slow, fast = fast_shares(policy)
    assert fast > as_slow + 0.05
    assert fast > 2 / 6


@pytest.mark.parametrize(
    "policy", [RoutingPolicy.RANDOM, RoutingPolicy.ROUND_ROBIN, RoutingPolicy.COLOCATION_QUEUEING]
)
def test_policies_that_ignore_load_ignore_speed(policy: RoutingPolicy) -> None:
    as_slow, fast = fast_shares(policy)
    assert fast == pytest.approx(as_slow, abs=0.03)
