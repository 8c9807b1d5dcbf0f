"""Remote proxying: pre- and postprocessing in one pod, inference in another."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
import torch

from tests import servers
from tests.runtime import archives
from tests.runtime.http import infer_texts, metric, picture, predict

if TYPE_CHECKING:
    from pathlib import Path

    from tests.runtime.conftest import Cluster


ROWS_WITHOUT_ROOM = 1024
"""To the fifth power, and four bytes of each: more than a process can address."""


def test_answer_is_the_same_as_local(cluster: Cluster, models: Path) -> None:
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


def test_answer_over_v2_keeps_the_callers_name(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-bert")
    entry, other = cluster.pod("entry"), cluster.pod("other")
    local = infer_texts(other.url, "m", "x", model_name="mine").json()
    remote = infer_texts(entry.url, "m", "x", model_name="mine", predict=other.address).json()
    assert remote == local
    assert local["model_name"] == "mine"


def test_cold_predict_pod_loads_and_says_so(cluster: Cluster, models: Path) -> None:
    spec = cluster.declare("m", models / "tiny-bert")
    entry, other = cluster.pod("entry"), cluster.pod("other")
    answer = predict(entry.url, "m", "x", predict=other.address)
    assert answer.headers["x-pilotlight-start"] == "remote"
    assert cluster.tiers(spec)["other"] == "device"


def test_own_address_is_no_hop(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-bert")
    pod = cluster.pod()
    answer = predict(pod.url, "m", "x", predict=pod.address)
    assert answer.status_code == 200
    assert "network" not in answer.headers["server-timing"]


def test_requests_are_forwarded_to_pods_only(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-bert")
    answer = predict(cluster.pod().url, "m", "x", predict=f"127.0.0.1:{servers.free_port()}")
    assert answer.status_code == 503
    assert answer.headers["x-pilotlight-not-executed"] == "unreachable"


def test_unreachable_predict_pod_executed_nothing(
    cluster: Cluster, models: Path, forkserver: servers.Forkserver
) -> None:
    cluster.declare("m", models / "tiny-bert")
    entry = cluster.pod("entry")
    with cluster.pod_context("other") as other:
        os.kill(other.pid, signal.SIGKILL)
        forkserver.events.append(forkserver.wait_event(exited="other"))
        answer = predict(entry.url, "m", "x", predict=other.address)
    assert answer.status_code == 503
    assert "cannot be reached" in answer.json()["error"]
    assert answer.headers["x-pilotlight-not-executed"] == "unreachable"


def test_refusal_of_the_predict_pod_is_passed_on(
    cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    cluster.declare("m", models / "tiny-t5")
    entry, other = cluster.pod("entry"), cluster.pod("other", memory_bytes=1000)
    answer = predict(entry.url, "m", "x", predict=other.address)
    assert answer.status_code == 507
    assert answer.headers["x-pilotlight-not-executed"] == "no-memory"
    assert answer.headers["x-pilotlight-pod"] == "entry"


class Wide(torch.nn.Module):
    """Takes the fifth power of its rows of memory."""

    def forward(self, column: torch.Tensor) -> torch.Tensor:
        rows = column.shape[0]
        return column.view(-1, 1, 1, 1, 1).expand([rows] * 5).clone().sum((1, 2, 3, 4))


@pytest.mark.parametrize("where", ["here", "there"])
def test_an_inference_without_room_is_one_for_another_device(
    cluster: Cluster, tmp_path: Path, where: str
) -> None:
    rows = torch.export.Dim("rows", max=ROWS_WITHOUT_ROOM)
    folder = tmp_path / "wide"
    archives.export(Wide(), folder / "model.pt2", torch.ones(2, 1), dynamic=({0: rows},))
    cluster.declare("wide", folder)
    entry, other = cluster.pod("entry"), cluster.pod("other")
    headers = {"predict": other.address} if where == "there" else {}
    assert predict(entry.url, "wide", [1.0], [1.0], **headers).status_code == 200
    answer = predict(entry.url, "wide", *[[1.0]] * ROWS_WITHOUT_ROOM, **headers)
    assert answer.status_code == 503, answer.text
    assert answer.headers["x-pilotlight-not-executed"] == "device-full"
    assert "no room for this inference of default/wide" in answer.json()["error"]
    assert predict(entry.url, "wide", [1.0], [1.0], **headers).status_code == 200


@pytest.mark.parametrize(
    ("stage", "where"),
    [
        pytest.param("preprocess", "local", id="preprocess"),
        pytest.param("postprocess", "local", id="postprocess"),
        pytest.param("network", "remote", id="network"),
    ],
)
def test_simulated_work_shows_in_its_stage(
    cluster: Cluster, models: Path, stage: str, where: str
) -> None:
    cluster.declare("m", models / "tiny-bert")
    entry = cluster.pod("entry", allow_simulated_work=True)
    headers = {"simulate": f"{stage}=0.2"}
    if where == "remote":
        headers["predict"] = cluster.pod("other").address
    answer = predict(entry.url, "m", "x", **headers)
    timings = dict(
        part.strip().split(";dur=") for part in answer.headers["server-timing"].split(",")
    )
    # The event loop's timers count whole milliseconds and may fire a part of one early.
    assert 190 <= float(timings[stage]) < 60_000
