"""Outputs of steps that stay on the pod's device; here it is a CPU, told to keep them there."""

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from common.inference_protocol.bodies import LENGTH_HEADER, decode_outputs
from tests import servers
from tests.runtime import archives
from tests.runtime.conftest import Cluster
from tests.runtime.http import metric, post
from tests.runtime.serving.test_step_tensors import LARGE, READS, features, kill, read, reference_of
from tests.servers import wait_until

pytestmark = pytest.mark.slow

MIB = 1024**2
SIZE = LARGE.nbytes
"""Of the tensors, 512 KiB."""
KEPT, ON_DEVICE = "pilotlight_kept_tensor_bytes", "pilotlight_kept_device_tensor_bytes"
COPIED = "pilotlight_kept_device_tensor_copied_bytes_total"
REASONS = ("limit", "load", "fetched", "used")
TEXTS = [f"text {number}" for number in range(1000)]
WEIGHTS_BYTES = 4 * MIB


class Doubled(torch.nn.Module):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features * 2


class Overwriting(torch.nn.Module):
    """It writes to its input, which belongs to other steps, too."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features.mul_(3) + 1


class Whole(torch.nn.Module):
    """Its rows depend on each other, so it runs alone."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features - features.mean(0)


class Heavy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.ones(WEIGHTS_BYTES // 4))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features * self.weights[:4]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    rows = torch.export.Dim("rows", max=65536)
    modules = {
        "double": Doubled(),
        "overwriting": Overwriting(),
        "whole": Whole(),
        "heavy": Heavy(),
    }
    for name, module in modules.items():
        file = folder / name / "model.pt2"
        archives.export(module, file, torch.ones(2, 4), dynamic=({0: rows},))
    return folder


@pytest.fixture
def declared(cluster: Cluster, programs: Path) -> Cluster:
    for folder in programs.iterdir():
        cluster.declare(folder.name, folder)
    return cluster


def infer(
    pod: servers.Pod, model: str, entry: dict[str, Any], run: str | None = "run-1"
) -> httpx.Response:
    document = {"inputs": [entry], "parameters": {"binary_data_output": True}}
    headers = {} if run is None else {"x_pilotlight_run": run}
    return post(f"{pod.url}/v2/models/default~{model}/infer", document, **headers)


def keep(
    pod: servers.Pod, rows: np.ndarray[Any, Any] = LARGE, run: str = "run-1"
) -> dict[str, Any]:
    """The double of the rows, kept."""
    return reference_of(infer(pod, "double", features(rows), run))


def copied(pod: servers.Pod) -> dict[str, float]:
    """Bytes that left the device, by reason."""
    found = {reason: metric(pod.url, COPIED, reason=reason) for reason in REASONS}
    return {reason: size for reason, size in found.items() if size}


def test_a_chain_in_one_pod_stays_on_the_device(declared: Cluster) -> None:
    pod, without = declared.pod("with", kept_device_bytes=64 * MIB), declared.pod("without")
    results = []
    for each in (pod, without):
        entry = keep(each)
        for model in ("whole", "overwriting", "double"):
            entry = reference_of(infer(each, model, entry))
        if each is pod:
            assert copied(pod) == {}
            assert metric(pod.url, ON_DEVICE) == metric(pod.url, KEPT) == 4 * SIZE
            assert metric(pod.url, READS, tier="same-pod") == 3
        results.append(read(each, entry))
    assert np.array_equal(*results)
    assert copied(pod) == {"fetched": SIZE}
    assert copied(without) == {}
    assert metric(without.url, ON_DEVICE) == 0


def test_no_program_writes_to_a_kept_tensor(declared: Cluster) -> None:
    pod = declared.pod(kept_device_bytes=64 * MIB)
    entry = keep(pod)
    first = reference_of(infer(pod, "overwriting", entry))
    assert np.array_equal(read(pod, first), LARGE * 6 + 1)
    assert np.array_equal(read(pod, entry), LARGE * 2)


def test_beyond_the_limit_the_oldest_goes_to_the_host(declared: Cluster) -> None:
    pod = declared.pod(kept_device_bytes=2 * SIZE)
    entries = [keep(pod, LARGE + number) for number in range(3)]
    assert copied(pod) == {"limit": SIZE}
    assert metric(pod.url, ON_DEVICE) == 2 * SIZE
    assert metric(pod.url, KEPT) == 3 * SIZE
    doubled = [reference_of(infer(pod, "double", each)) for each in entries[:1]]
    assert np.array_equal(read(pod, doubled[0]), LARGE * 4)
    for number, entry in enumerate(entries):
        assert np.array_equal(read(pod, entry), (LARGE + number) * 2)


def test_a_tensor_over_the_limit_is_kept_on_the_host(declared: Cluster) -> None:
    pod = declared.pod(kept_device_bytes=SIZE - 1)
    entry = keep(pod)
    assert metric(pod.url, ON_DEVICE) == 0
    assert metric(pod.url, KEPT) == SIZE
    assert np.array_equal(read(pod, entry), LARGE * 2)
    assert copied(pod) == {}


def test_the_device_is_freed_with_the_last_handle_and_with_the_run(declared: Cluster) -> None:
    pod = declared.pod(kept_device_bytes=64 * MIB)
    first, *_ = [keep(pod, run=run) for run in ("run-1", "run-1", "run-2")]
    assert metric(pod.url, ON_DEVICE) == 3 * SIZE
    for path, left in ((f"run-1/{first['parameters']['kept_tensor']}", 2), ("run-1", 1)):
        assert delete(f"{pod.url}/v2/tensors/default/{path}") == {"dropped": 1}
        assert metric(pod.url, ON_DEVICE) == metric(pod.url, KEPT) == left * SIZE
    assert infer(pod, "double", first).status_code == 424


def delete(url: str) -> Any:
    return httpx.delete(url, trust_env=False, timeout=60).json()


def test_a_load_that_needs_the_memory_has_it(declared: Cluster) -> None:
    """Tensors take what models leave, and give it back: the oldest go to the host."""
    pod = declared.pod(memory_bytes=WEIGHTS_BYTES + 2 * SIZE, kept_device_bytes=64 * MIB)
    entries = [keep(pod, LARGE + number) for number in range(4)]
    assert metric(pod.url, ON_DEVICE) == 4 * SIZE
    assert infer(pod, "heavy", features(LARGE[:4]), None).status_code == 200
    assert copied(pod) == {"load": 2 * SIZE}
    assert metric(pod.url, ON_DEVICE) == 2 * SIZE
    for number, entry in enumerate(entries):
        assert np.array_equal(read(pod, entry), (LARGE + number) * 2)


def test_other_pods_get_what_is_on_the_device(
    declared: Cluster, tmp_path: Path, forkserver: servers.Forkserver
) -> None:
    """Mapped on one node, else as raw bytes; those of a pod that is killed are lost."""
    node = str(tmp_path / "node")
    first = declared.pod("first", host_dir=node, kept_device_bytes=64 * MIB)
    second = declared.pod("second", host_dir=node)
    elsewhere = declared.pod("elsewhere", kept_device_bytes=64 * MIB)
    entries = [keep(first), keep(first)]
    for pod, entry, tier in (
        (second, entries[0], "shared-memory"),
        (elsewhere, entries[1], "raw-bytes"),
    ):
        made = reference_of(infer(pod, "double", entry))
        assert np.array_equal(read(pod, made), LARGE * 4)
        assert metric(pod.url, READS, tier=tier) == 1
    assert copied(first) == {"fetched": 2 * SIZE}
    assert metric(first.url, ON_DEVICE) == 0
    assert metric(first.url, KEPT) == 2 * SIZE
    kill(first, forkserver)
    assert infer(second, "double", entries[0]).status_code == 424


def test_small_outputs_and_those_of_other_requests_leave_the_device(declared: Cluster) -> None:
    pod = declared.pod(kept_device_bytes=64 * MIB)
    for rows, run in ((LARGE[:2], "run-1"), (LARGE, None)):
        response = infer(pod, "double", features(rows), run)
        (output,) = decode_outputs(response.content, response.headers[LENGTH_HEADER])
        assert np.array_equal(output.data, rows * 2)
    assert metric(pod.url, ON_DEVICE) == 0


def test_what_a_full_store_does_not_keep_is_sent_and_freed(declared: Cluster) -> None:
    pod = declared.pod(kept_device_bytes=64 * MIB, tensor_store_bytes=SIZE)
    keep(pod)
    response = infer(pod, "double", features(LARGE))
    (output,) = decode_outputs(response.content, response.headers[LENGTH_HEADER])
    assert np.array_equal(output.data, LARGE * 2)
    wait_until(lambda: metric(pod.url, ON_DEVICE) == SIZE, what="its memory freed")


def test_numbers_that_are_not_finite_are_refused_on_the_device_as_well(declared: Cluster) -> None:
    pod = declared.pod(kept_device_bytes=64 * MIB)
    entry = keep(pod, np.full_like(LARGE, 3e38))
    refused = infer(pod, "double", entry)
    assert refused.status_code == 400
    assert "must hold finite numbers" in refused.json()["error"]
    assert copied(pod) == {}


def test_embeddings_stay_on_the_device(cluster: Cluster, models: Path) -> None:
    cluster.declare("embedder", models / "tiny-bert", task="text-embedding")
    pod, without = cluster.pod("with", kept_device_bytes=64 * MIB), cluster.pod("without")
    entry = {"name": "text", "datatype": "BYTES", "shape": [len(TEXTS)], "data": TEXTS}
    kept, elsewhere = (reference_of(infer(each, "embedder", entry)) for each in (pod, without))
    assert kept["shape"] == elsewhere["shape"]
    assert metric(pod.url, ON_DEVICE) == kept["parameters"]["kept_bytes"]
    np.testing.assert_allclose(read(pod, kept), read(without, elsewhere), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(read(pod, kept), axis=1), 1, atol=1e-5)
