"""Steps of workflows at pods: large outputs stay there, and inputs refer to them."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
import torch

from common.inference_protocol.bodies import LENGTH_HEADER, decode_outputs
from tests import servers
from tests.runtime import archives
from tests.runtime.conftest import Cluster
from tests.runtime.http import get, metric, post

ROWS = np.arange(8192 * 4, dtype=np.float32).reshape(8192, 4)
"""128 KiB."""
LARGE = np.arange(32768 * 4, dtype=np.float32).reshape(32768, 4)
"""512 KiB."""
READS = "pilotlight_kept_tensor_reads_total"


class Doubled(torch.nn.Module):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features * 2


@pytest.fixture(scope="module")
def doubling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doubling")
    rows = torch.export.Dim("rows", max=65536)
    archives.export(Doubled(), folder / "model.pt2", torch.ones(2, 4), dynamic=({0: rows},))
    return folder


@pytest.fixture
def pods(cluster: Cluster, doubling: Path) -> tuple[servers.Pod, servers.Pod]:
    cluster.declare("double", doubling)
    return cluster.pod("first"), cluster.pod("second")


def infer(pod: servers.Pod, entry: dict[str, Any], run: str | None = "run-1") -> httpx.Response:
    """One step, with binary outputs."""
    document = {"inputs": [entry], "parameters": {"binary_data_output": True}}
    headers = {} if run is None else {"x_pilotlight_run": run}
    return post(f"{pod.url}/v2/models/default~double/infer", document, **headers)


def features(rows: np.ndarray[Any, Any] = ROWS) -> dict[str, Any]:
    data = rows.ravel().tolist()
    return {"name": "features", "datatype": "FP32", "shape": list(rows.shape), "data": data}


def reference_of(response: httpx.Response) -> dict[str, Any]:
    """The output of a step as the next one's input."""
    assert response.status_code == 200, response.text
    (output,) = response.json()["outputs"]
    assert "data" not in output
    return {**output, "name": "features"}


def kept_output(
    pod: servers.Pod, run: str = "run-1", rows: np.ndarray[Any, Any] = ROWS
) -> dict[str, Any]:
    return reference_of(infer(pod, features(rows), run))


def read(pod: servers.Pod, entry: dict[str, Any], run: str = "run-1") -> Any:
    parameters = entry["parameters"]
    response = get(f"{pod.url}/v2/tensors/default/{run}/{parameters['kept_tensor']}")
    assert response.status_code == 200, response.text
    assert len(response.content) == parameters["kept_bytes"]
    return np.frombuffer(response.content, np.float32).reshape(entry["shape"])


def test_a_chain_passes_references_in_a_pod_and_between_pods(
    pods: tuple[servers.Pod, servers.Pod],
) -> None:
    first, second = pods
    once = kept_output(first)
    assert once["parameters"]["kept_at"] == first.address
    twice = reference_of(infer(first, once))
    thrice = reference_of(infer(second, twice))
    assert thrice["parameters"]["kept_at"] == second.address
    assert np.array_equal(read(first, once), ROWS * 2)
    assert np.array_equal(read(second, thrice), ROWS * 8)
    assert metric(first.url, "pilotlight_kept_tensor_bytes") == 2 * ROWS.nbytes
    response = httpx.delete(f"{first.url}/v2/tensors/default/run-1", trust_env=False, timeout=60)
    assert response.json() == {"dropped": 2}
    assert metric(first.url, "pilotlight_kept_tensor_bytes") == 0
    for pod in pods:  # the pod itself, and the other, which asks it
        lost = infer(pod, twice)
        assert lost.status_code == 424, lost.text
        assert "does not keep the tensor" in lost.json()["error"]


def open_blocks(pod: servers.Pod) -> int:
    """Shared blocks that the pod's process holds, with two descriptors each."""
    folder = f"/proc/{pod.pid}/fd"
    targets = []
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):  # closed meanwhile
            targets.append(os.readlink(f"{folder}/{name}"))
    return sum("memfd:pilotlight-tensor" in target for target in targets) // 2


def kill(pod: servers.Pod, forkserver: servers.Forkserver) -> None:
    """Kill a pod; returns when all of its threads have ended, and its sockets are closed."""
    os.kill(pod.pid, signal.SIGKILL)
    forkserver.events.append(forkserver.wait_event(exited=pod.name))


@pytest.mark.slow
def test_pods_of_one_node_share_memory_and_a_killed_one_leaves_none(
    cluster: Cluster, doubling: Path, tmp_path: Path, forkserver: servers.Forkserver
) -> None:
    cluster.declare("double", doubling)
    node = tmp_path / "node"
    first, second = (cluster.pod(name, host_dir=str(node)) for name in ("first", "second"))
    elsewhere = cluster.pod("elsewhere")
    once = kept_output(first, rows=LARGE)
    twice = reference_of(infer(second, once))
    assert np.array_equal(read(second, twice), LARGE * 4)
    assert metric(second.url, READS, tier="shared-memory") == 1
    assert metric(second.url, READS, tier="raw-bytes") == 0
    thrice = reference_of(infer(elsewhere, twice))
    assert np.array_equal(read(elsewhere, thrice), LARGE * 8)
    assert metric(elsewhere.url, READS, tier="shared-memory") == 0
    assert metric(elsewhere.url, READS, tier="raw-bytes") == 1
    assert infer(second, once, "run-2").status_code == 424
    assert len(list(node.glob("*.socket"))) == 2

    kill(first, forkserver)
    lost = infer(second, once)
    assert lost.status_code == 424
    is_asked = "is not registered" not in lost.text
    assert len(list(node.glob("*.socket"))) == (1 if is_asked else 2), lost.text
    servers.wait_until(lambda: open_blocks(second) == 1, what="its own block alone")

    kill(second, forkserver)
    with cluster.pod_context("third", host_dir=str(node)) as third:
        assert open_blocks(third) == 0
        assert len(list(node.glob("*.socket"))) == 1
    assert not node.exists()


def test_small_outputs_and_those_of_other_requests_are_sent(
    pods: tuple[servers.Pod, servers.Pod],
) -> None:
    for response, rows in (
        (infer(pods[0], features(ROWS[:2])), ROWS[:2]),
        (infer(pods[0], features(), None), ROWS),
    ):
        (output,) = decode_outputs(response.content, response.headers[LENGTH_HEADER])
        assert np.array_equal(output.data, rows * 2)


def test_a_full_store_sends_the_data(cluster: Cluster, doubling: Path) -> None:
    cluster.declare("double", doubling)
    pod = cluster.pod(tensor_store_bytes=ROWS.nbytes)
    kept_output(pod)
    response = infer(pod, features())
    (output,) = decode_outputs(response.content, response.headers[LENGTH_HEADER])
    assert np.array_equal(output.data, ROWS * 2)


def test_references_serve_their_own_run_and_namespace_only(
    cluster: Cluster, pods: tuple[servers.Pod, servers.Pod]
) -> None:
    entry = kept_output(pods[0])
    assert infer(pods[0], entry, "run-2").status_code == 424
    assert infer(pods[1], entry, "run-2").status_code == 424
    refused = infer(pods[0], entry, None)
    assert refused.status_code == 400
    assert "references to tensors are for steps of workflows" in refused.json()["error"]
    identity = entry["parameters"]["kept_tensor"]
    assert get(f"{pods[0].url}/v2/tensors/other/run-1/{identity}").status_code == 404


@pytest.mark.parametrize(
    ("parameters", "status", "text"),
    [
        ({"kept_tensor": "../x"}, 400, "must be 32 hexadecimal digits"),
        ({"kept_at": "a/b:80"}, 400, "must be host:port"),
        ({"kept_at": None}, 400, "must be host:port"),
        ({"kept_at": "127.0.0.1:1"}, 424, "is not registered"),
        ({"kept_tensor": "0" * 32}, 424, "does not keep the tensor"),
    ],
)
def test_bad_references_are_refused(
    pods: tuple[servers.Pod, servers.Pod], parameters: dict[str, Any], status: int, text: str
) -> None:
    entry = kept_output(pods[0])
    entry["parameters"] |= parameters
    response = infer(pods[0], entry)
    assert (response.status_code, text in response.text) == (status, True), response.text


def test_a_reference_to_texts_is_refused(pods: tuple[servers.Pod, servers.Pod]) -> None:
    for pod in pods:
        response = infer(pod, kept_output(pods[0]) | {"datatype": "BYTES"})
        assert response.status_code == 400
        assert "inputs[0]: only numbers are kept, not BYTES" in response.text


def test_a_reference_with_another_shape_is_refused(pods: tuple[servers.Pod, servers.Pod]) -> None:
    entry = kept_output(pods[0]) | {"shape": [4096, 8]}
    response = infer(pods[0], entry)
    assert response.status_code == 400
    assert "not FP32 of shape [4096, 8]" in orjson.loads(response.content)["error"]
