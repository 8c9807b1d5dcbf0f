"""A gateway with two pods that have model servers: what clients see when one server dies."""

from pathlib import Path

import pytest

from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import post
from tests.runtime.model_server.as_written import ROW, TOTAL, make_model, request, written_server

pytestmark = pytest.mark.slow


def test_requests_go_to_the_other_pod_while_a_server_is_dead(
    cluster: Cluster, tmp_path: Path
) -> None:
    with (
        written_server(tmp_path / "one") as first,
        written_server(tmp_path / "two") as second,
        servers.gateway(
            tmp_path / "gateway", redis_url=cluster.redis_url, pool=cluster.pool
        ) as gateway,
    ):
        pods = {
            "pod-a": (cluster.pod("pod-a", **first.settings), first),
            "pod-b": (cluster.pod("pod-b", **second.settings), second),
        }
        spec = cluster.declare("adder", make_model(tmp_path / "adder"))
        url = f"{gateway.url}/v2/models/adder/infer"
        answer = post(url, request(ROW))
        assert answer.json()["outputs"][0]["data"] == [TOTAL]
        warm = answer.headers["x-pilotlight-pod"]
        pod, server = pods.pop(warm)
        ((other, _),) = pods.items()
        server.kill()
        for _ in range(20):
            found = post(url, request(ROW))
            assert found.status_code == 200, found.text
            assert found.headers["x-pilotlight-pod"] == other
        servers.wait_until(lambda: not pod.is_ready(), what="the pod is not ready")
        server.start()
        servers.wait_until(lambda: cluster.tiers(spec).get(warm) == "device", what="back")
        assert post(url, request(ROW)).status_code == 200
