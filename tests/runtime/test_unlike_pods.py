"""Two pods beside unlike servers: the slower one learns it, and all read its times so."""

from pathlib import Path
from statistics import fmean

import pytest

from registry.domain.cluster import ClusterState
from registry.domain.model import ModelSpec
from registry.redis.client import Registry
from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import predict
from tests.runtime.model_server.as_written import ROW, TOTAL, make_model, written_server

pytestmark = pytest.mark.slow

FAST_S, SLOW_S = 0.02, 0.2


def state_of(cluster: Cluster) -> ClusterState:
    async def look(registry: Registry) -> ClusterState:
        return await registry.cluster()

    return cluster.do(look)


def serve(pod: servers.Pod, spec: ModelSpec, requests: int = 6) -> None:
    for _ in range(requests):
        assert predict(pod.url, spec.name.name, ROW).json() == {"predictions": [TOTAL]}


def test_a_slower_pod_is_known_to_be_slower(cluster: Cluster, tmp_path: Path) -> None:
    specs = [cluster.declare(name, make_model(tmp_path / name)) for name in ("adder", "other")]
    with (
        written_server(tmp_path / "fast", delay_s=FAST_S) as fast,
        written_server(tmp_path / "slow", delay_s=SLOW_S) as slow,
    ):
        pods = [cluster.pod(name, **server.settings) for name, server in (("a", fast), ("b", slow))]

        def is_learned() -> bool:
            for spec in specs:
                for pod in pods:
                    serve(pod, spec)
            at_fast, at_slow = (state_of(cluster).pods[name] for name in ("a", "b"))
            ratio = at_slow.slowness / at_fast.slowness
            slow_s, fast_s = at_slow.speed.alone_s, at_fast.speed.alone_s
            served = [slow_s[key] / fast_s[key] for key in slow_s.keys() & fast_s.keys()]
            if len(served) < len(specs):
                return False
            return ratio > 1.5 and ratio == pytest.approx(fmean(served), rel=0.2)

        servers.wait_until(is_learned, what="the slower pod's factor")
        state = state_of(cluster)
    for spec in specs:
        at_fast, at_slow = (state.pods[name].estimates[spec.key] for name in ("a", "b"))
        assert at_slow.infer.seconds > 1.5 * at_fast.infer.seconds
    assert {*state.pods["b"].speed.alone_s} == {spec.key for spec in specs}
