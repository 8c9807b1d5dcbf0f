"""One valid request with many rows, beside small ones of others."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from registry.domain.model import ModelPolicy
from runtime.errors import BodyTooLarge
from runtime.wire.v2 import MAX_JSON_COMMAS, parse_object
from tests.runtime.http import metric, post, predict

if TYPE_CHECKING:
    from pathlib import Path

    from tests import servers
    from tests.runtime.conftest import Cluster

WORDS = "quick brown fox over the lazy dog"


def batches(pod: servers.Pod) -> float:
    return metric(pod.url, "pilotlight_batches_total", model="default/m", outcome="ok")


def test_a_request_of_many_rows_runs_in_parts(cluster: Cluster, models: Path) -> None:
    policy = ModelPolicy(max_batch_size=4)
    cluster.declare("m", models / "tiny-bert", task="text-embedding", policy=policy)
    pod = cluster.pod(slots=4)
    texts = [" ".join([WORDS] * (n % 5)) + f" {n}" for n in range(30)]
    alone: list[Any] = []
    for text in texts:
        alone += predict(pod.url, "m", text).json()["predictions"]
    before = batches(pod)
    together = predict(pod.url, "m", *texts).json()["predictions"]
    assert batches(pod) == before + 8
    for one, other in zip(alone, together, strict=True):
        assert max(abs(a - b) for a, b in zip(one, other, strict=True)) < 1e-4


def test_rows_of_generated_text_are_joined(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-t5", policy=ModelPolicy(max_batch_size=2))
    pod = cluster.pod()
    texts = ["a", WORDS, "dog", WORDS * 3, "fox"]
    alone = [predict(pod.url, "m", text).json()["predictions"][0] for text in texts]
    assert predict(pod.url, "m", *texts).json()["predictions"] == alone


def test_a_large_valid_request_does_not_shut_its_model_for_others(
    cluster: Cluster, models: Path
) -> None:
    cluster.declare("m", models / "tiny-bert", task="text-embedding")
    pod = cluster.pod(slots=4)
    small_s = _time(pod, 8)
    limit_s = max(0.3, 4 * small_s)
    cluster.declare(
        "m", models / "tiny-bert", task="text-embedding", policy=ModelPolicy(max_infer_s=limit_s)
    )
    texts = [" ".join([WORDS] * 60)] * 1024
    url = f"{pod.url}/v1/models/default~m:predict"
    response = post(url, orjson.loads(orjson.dumps({"instances": texts})))
    assert response.status_code == 200, response.text
    assert len(response.json()["predictions"]) == 1024
    assert predict(pod.url, "m", "x").status_code == 200


def _time(pod: servers.Pod, rows: int) -> float:
    texts = [" ".join([WORDS] * 60)] * rows
    assert predict(pod.url, "m", *texts).status_code == 200
    began_s = time.monotonic()
    predict(pod.url, "m", *texts)
    return time.monotonic() - began_s


def test_json_of_very_many_values_is_refused_before_it_is_parsed() -> None:
    few = b'{"data":[' + b",".join([b"1"] * MAX_JSON_COMMAS) + b"]}"
    assert len(parse_object(few)["data"]) == MAX_JSON_COMMAS
    with pytest.raises(BodyTooLarge, match="send large tensors in binary"):
        parse_object(few[:-2] + b",1,1]}")
