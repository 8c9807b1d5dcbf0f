"""A model that its owner stops, by KServe's annotation, on a real pod behind a real gateway."""

from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from registry.domain.model import STOPPED
from tests import servers
from tests.runtime.conftest import Cluster
from tests.tabular_models import MAKERS

ROW = {"instances": [[5.1, 3.5, 1.4, 0.2]]}


@pytest.mark.slow
def test_a_stopped_model_is_unloaded_refused_and_served_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    spec = cluster.declare("iris", MAKERS["sklearn"](tmp_path))
    cluster.pod()
    with servers.gateway(tmp_path, redis_url=cluster.redis_url, pool=cluster.pool) as gateway:

        def predict() -> httpx.Response:
            url = f"{gateway.url}/v1/models/iris:predict"
            return httpx.post(url, json=ROW, trust_env=False, timeout=60)

        servers.wait_until(lambda: predict().status_code == 200, what="served")
        assert cluster.tiers(spec)
        cluster.do(lambda registry: registry.put_models([replace(spec, needs=STOPPED)]))
        servers.wait_until(lambda: not cluster.tiers(spec), what="unloaded")
        servers.wait_until(lambda: predict().status_code == 503, what="refused")
        refused = predict()
        assert refused.headers["x-pilotlight-reason"] == "model-stopped"
        assert "serving.kserve.io/stop" in refused.json()["error"]
        assert "retry-after" not in refused.headers
        assert cluster.tiers(spec) == {}
        cluster.do(lambda registry: registry.put_models([spec]))
        servers.wait_until(lambda: predict().status_code == 200, what="served again")
