"""A model that raises: its requests get the reason in every protocol, others succeed."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from registry.domain.model import ModelPolicy
from tests import servers
from tests.runtime import rpc
from tests.runtime.conftest import Cluster
from tests.runtime.http import infer_texts, metric, post, predict
from tests.servers import copy_model

TOGETHER = ModelPolicy(max_batch_size=3, max_batch_wait_s=30.0)
"""A batch waits for three requests of one item."""


def raising(models: Path, folder: Path, **settings: object) -> Path:
    """A translation model that raises at its third token, or as configured by `settings`."""
    path = copy_model(models / "tiny-t5", folder / "raising") / "generation_config.json"
    config = json.loads(path.read_text())
    broken = {"exponential_decay_length_penalty": [2, "x"], "max_new_tokens": 9, **settings}
    path.write_text(json.dumps({**config, **broken}))
    return path.parent


def test_model_that_raises_fails_only_its_own_requests(
    cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    cluster.declare("m", raising(models, tmp_path), policy=TOGETHER)
    cluster.declare("other", models / "tiny-bert")
    port = servers.free_port()
    pod = cluster.pod(slots=4, grpc_port=port)
    with ThreadPoolExecutor(3) as clients:  # one batch, which is split after its failure
        v1 = clients.submit(predict, pod.url, "m", "quick brown fox")
        v2 = clients.submit(infer_texts, pod.url, "m", "quick brown fox")
        call = clients.submit(
            rpc.refused, port, "ModelInfer", rpc.infer_texts("default~m", "quick brown fox")
        )
    for response in (v1.result(), v2.result()):
        assert response.status_code == 500
        assert "inference of default/m" in response.json()["error"]
        assert "x-pilotlight-not-executed" not in response.headers
    assert call.result().code() is grpc.StatusCode.INTERNAL
    assert "inference of default/m" in call.result().details()
    assert metric(pod.url, "pilotlight_batches_total", model="default/m", outcome="split") == 1
    assert predict(pod.url, "other", "x").status_code == 200
    index = post(f"{pod.url}/v2/repository/index").json()
    assert {entry["name"]: entry["state"] for entry in index} == {
        "default~m": "READY",
        "default~other": "READY",
    }


def test_model_that_raises_in_its_warm_up_is_not_served(
    cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    decay = {"exponential_decay_length_penalty": [-1, "x"]}
    cluster.declare("m", raising(models, tmp_path, **decay))
    cluster.declare("other", models / "tiny-bert")
    pod = cluster.pod(slots=4)
    refused = predict(pod.url, "m", "quick brown fox")
    assert refused.status_code == 422
    assert "failed its first inference" in refused.json()["error"]
    assert refused.headers["x-pilotlight-not-executed"] == "load-failed"
    assert metric(pod.url, "pilotlight_tier_bytes", tier="device") == 0
    assert predict(pod.url, "other", "x").status_code == 200
