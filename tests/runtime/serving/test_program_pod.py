"""Exported programs through a pod: protocols, batches, hangs, memory."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from common.inference_protocol.bodies import LENGTH_HEADER, decode_outputs, encode_request
from common.inference_protocol.grpc_messages import messages
from common.inference_protocol.tensors import numeric_tensor
from registry.domain.model import ModelPolicy, ModelSpec, Tier
from tests import servers
from tests.runtime import archives, rpc
from tests.runtime.conftest import Cluster
from tests.runtime.fake_engine import FakeEngine
from tests.runtime.http import get, metric, post, post_bytes, predict
from tests.runtime.local_pod import LocalPod, local_pod, spec_of
from tests.runtime.test_device_memory import mapped_files, resident_bytes, staged
from tests.tiny_models import make_model

ROWS = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


class Endless(torch.nn.Module):
    """Takes longer than the time limit."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        wide = features.sum() + torch.ones(1, 1024)
        for _ in range(64):
            wide = (wide.t() @ wide).cos().sum(0, keepdim=True)
        return wide


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    make_model("tiny-program", folder / "sound")
    archives.export(Endless(), folder / "endless" / "model.pt2", torch.zeros(2, 4))
    bad = folder / "bad" / "model.pt2"
    content = {"data/weights/model_weights_config.json": b"{}"}
    archives.changed(folder / "sound" / "model.pt2", bad, lambda records: records.update(content))
    (folder / "script").mkdir()
    (folder / "script" / "model.pt").write_bytes(b"PK")
    return folder


class Served:
    def __init__(self, pod: servers.Pod, port: int) -> None:
        self.pod = pod
        self.port = port

    def infer(self, document: Any, model: str = "sound") -> Any:
        return post(f"{self.pod.url}/v2/models/default~{model}/infer", document)


@pytest.fixture(scope="module")
def served(shared_cluster: Cluster, programs: Path) -> Served:
    for name in ("sound", "bad", "script"):
        shared_cluster.declare(name, programs / name)
    shared_cluster.declare("tasked", programs / "sound", task="text-classification")
    port = servers.free_port()
    return Served(shared_cluster.pod("programs", slots=8, grpc_port=port), port)


def features(rows: np.ndarray[Any, Any] = ROWS, **changes: Any) -> dict[str, Any]:
    entry = {"name": "features", "datatype": "FP32", "shape": list(rows.shape)}
    return {"inputs": [{**entry, "data": rows.ravel().tolist(), **changes}]}


@pytest.fixture(scope="module")
def scores(served: Served) -> np.ndarray[Any, Any]:
    """The pod's response to `ROWS`, over JSON."""
    response = served.infer(features())
    assert response.status_code == 200, response.text
    scores, label = response.json()["outputs"]
    assert (scores["name"], scores["datatype"], scores["shape"]) == ("scores", "FP32", [3, 3])
    assert (label["name"], label["datatype"], label["shape"]) == ("label", "INT64", [3])
    values = np.array(scores["data"], np.float32).reshape(3, 3)
    assert values.argmax(1).tolist() == label["data"]
    return values


def test_binary_and_json_agree(served: Served, scores: np.ndarray[Any, Any]) -> None:
    body = encode_request([numeric_tensor("features", ROWS)])
    response = post_bytes(
        f"{served.pod.url}/v2/models/default~sound/infer",
        body.content,
        **{name.replace("-", "_"): value for name, value in body.headers},
    )
    outputs = decode_outputs(response.content, response.headers[LENGTH_HEADER])
    assert np.allclose(outputs[0].data, scores, atol=1e-6)


def test_grpc_and_json_agree(served: Served, scores: np.ndarray[Any, Any]) -> None:
    request = messages.ModelInferRequest(model_name="default~sound")
    request.inputs.add(name="INPUT__0", datatype="FP32", shape=[3, 4])
    request.raw_input_contents.append(ROWS.tobytes())
    response = rpc.call(served.port, "ModelInfer", request)
    assert [output.name for output in response.outputs] == ["scores", "label"]
    values = np.frombuffer(response.raw_output_contents[0], np.float32).reshape(3, 3)
    assert np.allclose(values, scores, atol=1e-6)


def test_v1_gives_an_object_per_row(served: Served, scores: np.ndarray[Any, Any]) -> None:
    predictions = predict(served.pod.url, "sound", *ROWS.tolist()).json()["predictions"]
    assert [each["label"] for each in predictions] == scores.argmax(1).tolist()
    assert np.allclose([each["scores"] for each in predictions], scores, atol=1e-6)


def test_metadata_holds_the_signature(served: Served) -> None:
    about = get(f"{served.pod.url}/v2/models/default~sound").json()
    assert about["inputs"] == [{"name": "features", "datatype": "FP32", "shape": [-1, 4]}]
    assert about["outputs"] == [
        {"name": "scores", "datatype": "FP32", "shape": [-1, 3]},
        {"name": "label", "datatype": "INT64", "shape": [-1]},
    ]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        pytest.param(features(name="x"), "takes inputs named ['features']", id="name"),
        pytest.param(features(datatype="FP64"), "must be FP32, was FP64", id="datatype"),
        pytest.param(features(ROWS[:, :2]), "must have shape [1 to 256, 4]", id="shape"),
        pytest.param(features(data=["a"] * 12), "values of datatype FP32", id="values"),
        pytest.param({**features(), "outputs": [{"name": "no"}]}, "the model has", id="output"),
    ],
)
def test_invalid_tensors_get_status_400(served: Served, document: Any, message: str) -> None:
    response = served.infer(document)
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]


@pytest.mark.parametrize(
    ("model", "status", "message"),
    [
        pytest.param("bad", 422, "of the program must be an object", id="archive"),
        pytest.param(
            "script", 501, "TorchScript and pickled models are not served", id="torchscript"
        ),
        pytest.param("tasked", 422, "remove the annotation pilotlight.io/task", id="task"),
    ],
)
def test_unsupported_models_name_the_reason(
    served: Served, model: str, status: int, message: str
) -> None:
    response = served.infer(features(), model)
    assert response.status_code == status, response.text
    assert message in response.json()["error"]


def test_requests_share_a_batch(cluster: Cluster, programs: Path) -> None:
    policy = ModelPolicy(max_batch_size=3, max_batch_wait_s=30.0)
    cluster.declare("m", programs / "sound", policy=policy)
    pod = cluster.pod(slots=3)
    assert post(f"{pod.url}/v2/repository/models/default~m/load").status_code == 200
    with ThreadPoolExecutor(3) as clients:
        responses = list(clients.map(lambda row: predict(pod.url, "m", row.tolist()), ROWS))
    assert [response.status_code for response in responses] == [200] * 3
    assert metric(pod.url, "pilotlight_batches_total", model="default/m", outcome="ok") == 1
    assert metric(pod.url, "pilotlight_batch_size_sum", model="default/m") == 3


def test_infers_at_another_pod(cluster: Cluster, programs: Path) -> None:
    cluster.declare("m", programs / "sound")
    entry, predicting = cluster.pod("entry"), cluster.pod("predicting")
    alone = predict(predicting.url, "m", *ROWS.tolist())
    through = predict(
        entry.url, "m", *ROWS.tolist(), predict=predicting.url.removeprefix("http://")
    )
    assert through.status_code == 200, through.text
    assert through.headers["x-pilotlight-predict-pod"] == "predicting"
    assert through.json() == alone.json()


def test_hung_program_is_unloaded(cluster: Cluster, programs: Path) -> None:
    policy = ModelPolicy(max_infer_s=0.005)
    cluster.declare("m", programs / "endless", policy=policy)
    cluster.declare("other", programs / "sound")
    pod = cluster.pod()
    response = predict(pod.url, "m", *ROWS[:2].tolist())
    assert response.status_code in {503, 504}, response.text
    assert "did not end within 0.005 s" in response.json()["error"]
    assert predict(pod.url, "other", *ROWS.tolist()).status_code == 200


async def infer_bytes(pod: LocalPod, spec: ModelSpec) -> bytes:
    entry = pod.loader.store.acquire(spec.key)
    assert entry is not None
    inputs = entry.model.processor.batching.validate([numeric_tensor("features", ROWS)])
    result = await entry.model.infer(inputs)
    pod.loader.store.end_use(entry)
    return b"".join(tensor.data.tobytes() for tensor in result.value)


async def cycle(pod: LocalPod, spec: ModelSpec, count: int) -> None:
    for _ in range(count):
        await pod.load(spec)
        await infer_bytes(pod, spec)
        await pod.unload(spec)


def test_results_are_equal_from_every_tier(programs: Path, tmp_path: Path) -> None:
    spec = spec_of("sound", programs / "sound")

    async def main() -> None:
        async with local_pod(tmp_path, host_bytes=1 << 30) as pod:
            responses, tiers = [], []
            for tier in (Tier.REMOTE, Tier.DISK, Tier.HOST):
                if tier is Tier.HOST:
                    await pod.demote(spec)
                tiers.append(await pod.load(spec))
                responses.append(await infer_bytes(pod, spec))
                await pod.unload(spec)
            assert tiers == [Tier.REMOTE, Tier.DISK, Tier.HOST]
            assert responses[0] == responses[1] == responses[2]

    asyncio.run(main())


@pytest.mark.slow
def test_memory_is_at_its_baseline_after_200_loads(programs: Path, tmp_path: Path) -> None:
    spec = spec_of("sound", programs / "sound")

    async def main() -> None:
        async with local_pod(tmp_path) as pod:
            await cycle(pod, spec, 30)
            before, open_before = resident_bytes(), len(os.listdir("/proc/self/fd"))
            await cycle(pod, spec, 200)
            assert abs(resident_bytes() - before) < 8e6
            assert len(os.listdir("/proc/self/fd")) == open_before
            assert mapped_files(tmp_path) == 0
            assert pod.loader.store.used_bytes == 0

    asyncio.run(main())


def test_slabs_of_programs_are_freed(programs: Path, tmp_path: Path) -> None:
    engine = FakeEngine()
    spec = spec_of("sound", programs / "sound")

    async def main() -> None:
        async with local_pod(tmp_path, memory=staged(engine)) as pod:
            await pod.load(spec)
            assert engine.allocated_bytes == pod.loader.store.bytes_of(spec.key) > 0
            await pod.unload(spec)
            assert engine.allocated_bytes == 0

    asyncio.run(main())
