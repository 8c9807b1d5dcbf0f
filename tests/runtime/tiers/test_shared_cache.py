"""Pods of one node with one disk cache: one download, also if the downloading pod dies."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from runtime.storage.listing import ASSET_SUFFIXES
from tests import servers
from tests.runtime.http import metric, predict

if TYPE_CHECKING:
    from pathlib import Path

    from tests.runtime.conftest import Cluster

pytestmark = pytest.mark.slow


def bytes_of(model: Path) -> int:
    """Bytes that are fetched of a model's folder."""
    wanted = ASSET_SUFFIXES | {".safetensors"}
    return sum(path.stat().st_size for path in model.iterdir() if path.suffix in wanted)


def test_pods_of_a_node_share_one_download(cluster: Cluster, models: Path, tmp_path: Path) -> None:
    cluster.declare("m", models / "tiny-bert")
    pods = [
        cluster.pod(name, node="node", cache_dir=str(tmp_path / "node"), link_rate=100_000)
        for name in ("pod-a", "pod-b")
    ]
    with ThreadPoolExecutor(2) as clients:
        answers = list(clients.map(lambda pod: predict(pod.url, "m", "x"), pods))
    assert [answer.status_code for answer in answers] == [200, 200]
    downloaded = sum(metric(pod.url, "pilotlight_downloaded_bytes_total") for pod in pods)
    assert downloaded == bytes_of(models / "tiny-bert")


def test_pod_reports_models_that_another_pod_fetched(
    cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    spec = cluster.declare("m", models / "tiny-bert")
    first, second = (
        cluster.pod(name, node="node", cache_dir=str(tmp_path / "node"))
        for name in ("pod-a", "pod-b")
    )
    assert predict(first.url, "m", "x").headers["x-pilotlight-start"] == "remote"
    wanted = {"pod-a": "device", "pod-b": "disk"}
    servers.wait_until(lambda: cluster.tiers(spec) == wanted)
    assert predict(second.url, "m", "x").headers["x-pilotlight-start"] == "disk"


def test_waiting_pod_continues_the_download_of_a_killed_one(
    cluster: Cluster, models: Path, tmp_path: Path
) -> None:
    cluster.declare("m", models / "tiny-bert")
    folder = tmp_path / "node"
    slow = cluster.pod("pod-a", node="node", cache_dir=str(folder), link_rate=20_000)
    other = cluster.pod("pod-b", node="node", cache_dir=str(folder))
    with ThreadPoolExecutor(2) as clients:
        lost = clients.submit(predict, slow.url, "m", "x")
        servers.wait_until(lambda: list(folder.glob("*/model.safetensors.part")))
        kept = clients.submit(predict, other.url, "m", "x")
        os.kill(slow.pid, signal.SIGKILL)
        assert kept.result().status_code == 200
        assert lost.exception() is not None
    assert not list(folder.rglob("*.part*"))
