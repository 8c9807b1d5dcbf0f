"""Remote inference: pre- and postprocessing in one pod, inference in another."""

import os
import signal
from pathlib import Path

import pytest
import torch

from tests import servers
from tests.runtime import archives
from tests.runtime.conftest import Cluster
from tests.runtime.http import infer_texts, metric, picture, predict

ROWS_WITHOUT_ROOM = 1024
"""To the fifth power, times four bytes: more than a process can address."""


def test_remote_result_equals_local_result(cluster: Cluster, models: Path) -> None:
    for name in ("tiny-t5", "tiny-bert", "tiny-vit"):
        cluster.declare(name, models / name)
    entry, other = cluster.pod("entry"), cluster.pod("other")
    for name in ("tiny-t5", "tiny-bert", "tiny-vit"):
        item = {"image_bytes": {"b64": picture()}} if name == "tiny-vit" else "quick brown fox"
        local = predict(other.url, name, item)
        remote = predict(entry.url, name, item, predict=other.address)
        assert remote.status_code == 200, remote.text
        assert remote.json() == local.json()
        assert remote.headers["x-pilotlight-pod"] == "entry"
        assert remote.headers["x-pilotlight-predict-pod"] == "other"
        assert remote.headers["x-pilotlight-start"] == "warm"
        assert "network;dur=" in remote.headers["server-timing"]
    assert metric(entry.url, "pilotlight_loads_total") == 0
    assert not list((entry.folder / "cache").rglob("*.safetensors"))


def test_v2_response_keeps_the_clients_model_name(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-bert")
    entry, other = cluster.pod("entry"), cluster.pod("other")
    local = infer_texts(other.url, "m", "x", model_name="mine").json()
    remote = infer_texts(entry.url, "m", "x", model_name="mine", predict=other.address).json()
    assert remote == local
    assert local["model_name"] == "mine"


def test_cold_predict_pod_reports_its_load(cluster: Cluster, models: Path) -> None:
    spec = cluster.declare("m", models / "tiny-bert")
    entry, other = cluster.pod("entry"), cluster.pod("other")
    response = predict(entry.url, "m", "x", predict=other.address)
    assert response.headers["x-pilotlight-start"] == "remote"
    assert cluster.tiers(spec)["other"] == "device"


def test_own_address_infers_locally(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-bert")
    pod = cluster.pod()
    response = predict(pod.url, "m", "x", predict=pod.address)
    assert response.status_code == 200
    assert "network" not in response.headers["server-timing"]


def test_forwards_only_to_registered_pods(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-bert")
    response = predict(cluster.pod().url, "m", "x", predict=f"127.0.0.1:{servers.free_port()}")
    assert response.status_code == 503
    assert response.headers["x-pilotlight-not-executed"] == "unreachable"


def test_unreachable_predict_pod_reports_not_executed(
    cluster: Cluster, models: Path, forkserver: servers.Forkserver
) -> None:
    cluster.declare("m", models / "tiny-bert")
    entry = cluster.pod("entry")
    with cluster.pod_context("other") as other:
        os.kill(other.pid, signal.SIGKILL)
        forkserver.events.append(forkserver.wait_event(exited="other"))
        response = predict(entry.url, "m", "x", predict=other.address)
    assert response.status_code == 503
    assert "cannot be reached" in response.json()["error"]
    assert response.headers["x-pilotlight-not-executed"] == "unreachable"


def test_forwards_the_refusal_of_the_predict_pod(
    cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    cluster.declare("m", models / "tiny-t5")
    entry, other = cluster.pod("entry"), cluster.pod("other", memory_bytes=1000)
    response = predict(entry.url, "m", "x", predict=other.address)
    assert response.status_code == 507
    assert response.headers["x-pilotlight-not-executed"] == "no-memory"
    assert response.headers["x-pilotlight-pod"] == "entry"


class Wide(torch.nn.Module):
    """Needs memory of the fifth power of its rows."""

    def forward(self, column: torch.Tensor) -> torch.Tensor:
        rows = column.shape[0]
        return column.view(-1, 1, 1, 1, 1).expand([rows] * 5).clone().sum((1, 2, 3, 4))


@pytest.mark.slow
@pytest.mark.parametrize("where", ["here", "there"])
def test_inference_without_memory_can_be_retried_elsewhere(
    cluster: Cluster, tmp_path: Path, where: str
) -> None:
    rows = torch.export.Dim("rows", max=ROWS_WITHOUT_ROOM)
    folder = tmp_path / "wide"
    archives.export(Wide(), folder / "model.pt2", torch.ones(2, 1), dynamic=({0: rows},))
    cluster.declare("wide", folder)
    entry, other = cluster.pod("entry"), cluster.pod("other")
    headers = {"predict": other.address} if where == "there" else {}
    assert predict(entry.url, "wide", [1.0], [1.0], **headers).status_code == 200
    response = predict(entry.url, "wide", *[[1.0]] * ROWS_WITHOUT_ROOM, **headers)
    assert response.status_code == 503, response.text
    assert response.headers["x-pilotlight-not-executed"] == "device-full"
    assert "no room for this inference of default/wide" in response.json()["error"]
    assert predict(entry.url, "wide", [1.0], [1.0], **headers).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "where"),
    [
        pytest.param("preprocess", "local", id="preprocess"),
        pytest.param("postprocess", "local", id="postprocess"),
        pytest.param("network", "remote", id="network"),
    ],
)
def test_simulated_work_counts_in_its_stage(
    cluster: Cluster, models: Path, stage: str, where: str
) -> None:
    cluster.declare("m", models / "tiny-bert")
    entry = cluster.pod("entry", allow_simulated_work=True)
    headers = {"simulate": f"{stage}=0.2"}
    if where == "remote":
        headers["predict"] = cluster.pod("other").address
    response = predict(entry.url, "m", "x", **headers)
    timings = dict(
        part.strip().split(";dur=") for part in response.headers["server-timing"].split(",")
    )
    # The event loop's timers count whole milliseconds and may fire a part of one early.
    assert 190 <= float(timings[stage]) < 60_000
