"""A model that does not end: it alone is broken and says why; too many of them end the pod."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from registry.domain.model import ModelPolicy
from tests.runtime.http import metric, predict
from tests.servers import copy_model, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests import servers
    from tests.runtime.conftest import Cluster


def endless(models: Path, folder: Path) -> Path:
    """A translator that generates for hours; its first inference, of one token, is short."""
    path = copy_model(models / "tiny-t5", folder / "endless") / "generation_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "min_new_tokens": 10**7, "max_new_tokens": 10**7}))
    return path.parent


def hung_batches(url: str) -> float:
    return metric(url, "pilotlight_batches_total", model="default/m", outcome="hung")


def test_a_hanging_model_is_broken_alone(cluster: Cluster, models: Path, tmp_path: Path) -> None:
    spec = cluster.declare("m", endless(models, tmp_path))
    cluster.declare("other", models / "tiny-bert")
    pod = cluster.pod(slots=4, inference_timeout=2.0)
    assert predict(pod.url, "other", "x").status_code == 200
    with ThreadPoolExecutor(2) as pool:
        hung = pool.submit(predict, pod.url, "m", "quick brown fox")
        wait_until(lambda: hung_batches(pod.url) == 1, what="the hang is seen")
        assert predict(pod.url, "other", "x").status_code == 200
        answer = hung.result()
    assert answer.status_code == 504
    assert "did not end within 2 s" in answer.json()["error"]
    assert "x-pilotlight-not-executed" not in answer.headers

    refused = predict(pod.url, "m", "quick brown fox")
    assert refused.status_code == 503
    assert "did not end within 2 s" in refused.json()["error"]
    assert refused.headers["x-pilotlight-not-executed"] == "load-failed"
    assert int(refused.headers["retry-after"]) > 60

    wait_until(lambda: cluster.record("m").failure, what="the record says so")
    failure = cluster.record("m").failure
    assert failure is not None
    assert (failure.key, failure.reason) == (spec.key, "RuntimeUnhealthy")
    wait_until(lambda: cluster.tiers(spec)[pod.name] == "disk", what="the model left the device")
    assert predict(pod.url, "other", "x").status_code == 200
    assert hung_batches(pod.url) == 1


def test_a_models_annotation_sets_its_time(cluster: Cluster, models: Path, tmp_path: Path) -> None:
    cluster.declare("m", endless(models, tmp_path), policy=ModelPolicy(max_infer_s=1.5))
    pod = cluster.pod(inference_timeout=300.0)
    answer = predict(pod.url, "m", "quick brown fox")
    assert answer.status_code == 504
    assert "within 1.5 s" in answer.json()["error"]


def test_too_many_hangs_end_the_pod(
    cluster: Cluster, models: Path, tmp_path: Path, forkserver: servers.Forkserver
) -> None:
    cluster.declare("m", endless(models, tmp_path))
    with cluster.pod_context("pod-a", inference_timeout=1.5, most_stuck_threads=0) as pod:
        assert predict(pod.url, "m", "quick brown fox").status_code == 504
        ended = forkserver.wait_event(exited="pod-a")
        forkserver.events.append(ended)
        assert ended["status"] == 0
    assert "too many hung inferences" in pod.log
