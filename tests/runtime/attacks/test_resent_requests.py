"""A request whose connection was lost, sent to its pod again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.runtime.http import post, predict

if TYPE_CHECKING:
    from pathlib import Path

    from tests.runtime.conftest import Cluster


def test_a_begun_request_is_not_executed_again(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-bert")
    pod = cluster.pod()
    url, body = f"{pod.url}/v1/models/default~m:predict", {"instances": ["x"]}
    ids = {"x_request_id": "r1"}
    assert predict(pod.url, "m", "x").status_code == 200
    assert post(url, body, **ids, x_pilotlight_resent="1").status_code == 200
    again = post(url, body, **ids, x_pilotlight_resent="1")
    assert again.status_code == 502
    assert "had begun" in again.json()["error"]
    assert "x-pilotlight-not-executed" not in again.headers
    assert post(url, body, **ids).status_code == 200


def test_requests_of_one_id_are_told_apart_by_their_attempt(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-bert")
    pod = cluster.pod()
    url, body = f"{pod.url}/v1/models/default~m:predict", {"instances": ["x"]}
    ids = {"x_request_id": "r1", "x_pilotlight_resent": "1"}
    assert post(url, body, **ids, x_pilotlight_attempt="a1").status_code == 200
    assert post(url, body, **ids, x_pilotlight_attempt="a2").status_code == 200
    assert post(url, body, **ids, x_pilotlight_attempt="a2").status_code == 502
