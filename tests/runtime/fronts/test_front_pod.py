"""A pod with front processes: what they infer, what they pass on, and bad input."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
from PIL import Image

from runtime.wire.tensors import Tensor, bytes_tensor, numeric_tensor
from runtime.wire.v2 import LENGTH_HEADER, decode_outputs, encode_request
from tests import servers
from tests.runtime.fronts.warm_fronts import inferred, passed, warm
from tests.runtime.http import get, infer_texts, metric, picture, post, post_bytes, predict

if TYPE_CHECKING:
    from pathlib import Path

    from tests.runtime.conftest import Cluster

FRONTS = 2


@pytest.fixture(scope="module")
def served(shared_cluster: Cluster, models: Path) -> servers.Pod:
    """A pod whose fronts know all of its models but the translator."""
    shared_cluster.declare("classifier", models / "tiny-bert")
    shared_cluster.declare("embedder", models / "tiny-bert", task="text-embedding")
    shared_cluster.declare("eye", models / "tiny-vit")
    shared_cluster.declare("writer", models / "tiny-gpt2")
    pod = shared_cluster.pod(front_processes=FRONTS, slots=4, max_body_bytes=1_000_000)
    warm(pod, "classifier", FRONTS)
    warm(pod, "embedder", FRONTS)
    warm(pod, "eye", FRONTS, {"instances": [{"image_bytes": {"b64": picture()}}]})
    return pod


@pytest.fixture(scope="module")
def plain(shared_cluster: Cluster, served: servers.Pod) -> servers.Pod:
    """A pod of the same models without fronts."""
    assert served.is_ready()
    pod = shared_cluster.pod("pod-plain", slots=4, max_body_bytes=1_000_000)
    for model in ("classifier", "embedder"):
        assert predict(pod.url, model, "warm").status_code == 200
    assert predict(pod.url, "eye", {"image_bytes": {"b64": picture()}}).status_code == 200
    return pod


def body_of(*tensors: Tensor) -> tuple[bytes, dict[str, str]]:
    encoded = encode_request(tensors)
    return encoded.content, dict(encoded.headers)


TEXTS = body_of(bytes_tensor("text", [b"one", b"quite another text"]))
REQUESTS: list[Any] = [
    pytest.param("v1/models/default~classifier:predict", b'{"instances": ["a day"]}', {}, id="v1"),
    pytest.param(
        "v2/models/default~embedder/infer",
        b'{"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["x"]}],'
        b' "id": "7"}',
        {},
        id="v2-json",
    ),
    pytest.param("v2/models/default~embedder/infer", *TEXTS, id="v2-binary"),
    pytest.param(
        "v2/models/default~classifier/infer",
        b'{"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["x"]}],'
        b' "outputs": [{"name": "score"}]}',
        {},
        id="v2-named-output",
    ),
    pytest.param(
        "serving/default~embedder/openai/v1/embeddings",
        b'{"model": "embedder", "input": ["one", "two"], "encoding_format": "base64"}',
        {},
        id="openai-texts",
    ),
    pytest.param(
        "serving/default~embedder/openai/v1/embeddings",
        b'{"model": "embedder", "input": [[5, 6, 7], [8]]}',
        {},
        id="openai-tokens",
    ),
    pytest.param(
        "v1/models/default~eye:predict",
        b'{"instances": [{"image_bytes": {"b64": "%b"}}]}' % picture().encode(),
        {},
        id="image",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "headers"), REQUESTS)
def test_fronts_answer_as_a_pod_without_them(
    served: servers.Pod, plain: servers.Pod, path: str, body: bytes, headers: dict[str, str]
) -> None:
    before = inferred(served)
    ours = post_bytes(f"{served.url}/{path}", body, **headers)
    theirs = post_bytes(f"{plain.url}/{path}", body, **headers)
    assert inferred(served) == before + 1
    assert (ours.status_code, ours.content) == (200, theirs.content)
    for name in ("content-type", LENGTH_HEADER, "x-pilotlight-start"):
        assert ours.headers.get(name) == theirs.headers.get(name)
    assert ours.headers["x-pilotlight-pod"] == ours.headers["x-pilotlight-predict-pod"] == "pod-a"
    stages = [each.partition(";")[0] for each in ours.headers["server-timing"].split(", ")]
    assert stages == ["preprocess", "infer", "postprocess"]


BAD: list[Any] = [
    pytest.param("v1/models/default~classifier:predict", b"{", {}, id="no-json"),
    pytest.param("v1/models/default~classifier:predict", b'{"instances": [7]}', {}, id="no-text"),
    pytest.param("v1/models/default~classifier:predict", b"", {}, id="empty"),
    pytest.param(
        "v2/models/default~classifier/infer",
        b'{"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["x"]}],'
        b' "outputs": [{"name": "nothing"}]}',
        {},
        id="unknown-output",
    ),
    pytest.param("v2/models/default~embedder/infer", TEXTS[0], {LENGTH_HEADER: "9e9"}, id="length"),
    pytest.param(
        "v2/models/default~embedder/infer",
        *body_of(numeric_tensor("input_ids", np.array([[10**9]]))),
        id="token",
    ),
    pytest.param(
        "serving/default~embedder/openai/v1/embeddings",
        b'{"model": "embedder", "input": [[-1]]}',
        {},
        id="openai-token",
    ),
    pytest.param(
        "serving/default~embedder/openai/v1/embeddings",
        b'{"model": "other", "input": "x"}',
        {},
        id="openai-other-model",
    ),
    pytest.param(
        "serving/default~classifier/openai/v1/embeddings",
        b'{"model": "classifier", "input": "x"}',
        {},
        id="no-embedder",
    ),
    pytest.param(
        "v1/models/default~classifier:predict",
        b'{"instances": ["x"]}',
        {"x-pilotlight-deadline-ms": "soon"},
        id="deadline",
    ),
    pytest.param(
        "v1/models/default~classifier:predict",
        b'{"instances": ["x"]}',
        {"x-pilotlight-deadline-ms": "-1"},
        id="late",
    ),
    pytest.param("v1/models/default~none:predict", b'{"instances": ["x"]}', {}, id="no-model"),
    pytest.param("v1/models/default~classifier:predict", bytes(2_000_000), {}, id="too-long"),
    pytest.param("v1/models/default~classifier:predict", b"x", {"content-encoding": "br"}, id="br"),
    pytest.param(
        "v1/models/default~eye:predict",
        b'{"instances": [{"image_bytes": {"b64": "AAAA"}}]}',
        {},
        id="no-image",
    ),
    pytest.param("v3/unknown", b"{}", {}, id="no-path"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "headers"), BAD)
def test_fronts_refuse_as_a_pod_without_them(
    served: servers.Pod, plain: servers.Pod, path: str, body: bytes, headers: dict[str, str]
) -> None:
    ours = post_bytes(f"{served.url}/{path}", body, **headers)
    theirs = post_bytes(f"{plain.url}/{path}", body, **headers)
    assert ours.status_code == theirs.status_code >= 400
    assert ours.content == theirs.content
    for name in ("content-type", "retry-after", "x-pilotlight-not-executed"):
        assert ours.headers.get(name) == theirs.headers.get(name)


def test_fronts_batch_together(served: servers.Pod) -> None:
    before = metric(served.url, "pilotlight_batch_size_count", model="default/classifier")
    with httpx.Client(trust_env=False) as client:
        for _ in range(8):
            url = f"{served.url}/v1/models/default~classifier:predict"
            assert client.post(url, json={"instances": ["x"]}).status_code == 200
    after = metric(served.url, "pilotlight_batch_size_count", model="default/classifier")
    assert after == before + 8


def test_a_large_image_goes_through_memory(served: servers.Pod, plain: servers.Pod) -> None:
    buffer = io.BytesIO()
    Image.effect_noise((200, 200), 50).convert("RGB").save(buffer, "PNG")
    tensor = bytes_tensor("image", [base64.b64encode(buffer.getvalue())] * 4)
    body, headers = body_of(tensor)
    found = []
    for pod in (served, plain):
        response = post_bytes(f"{pod.url}/v2/models/default~eye/infer", body, **headers)
        assert response.status_code == 200, response.text
        found.append(decode_outputs(response.content, response.headers[LENGTH_HEADER]))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours.data, theirs.data)


def test_other_routes_are_passed_on(served: servers.Pod, plain: servers.Pod) -> None:
    for path in ("v2", "v2/models", "v2/models/default~embedder", "v1/models", "v2/health/live"):
        ours, theirs = get(f"{served.url}/{path}"), get(f"{plain.url}/{path}")
        assert (ours.status_code, ours.content) == (theirs.status_code, theirs.content), path
    for path in ("v2/health/ready", "metrics", "none"):
        assert get(f"{served.url}/{path}").status_code == get(f"{plain.url}/{path}").status_code
    head = httpx.head(f"{served.url}/metrics", trust_env=False, timeout=10)
    assert (head.status_code, head.content) == (405, b"")


def test_a_cold_model_is_loaded_and_then_learnt(
    served: servers.Pod, shared_cluster: Cluster, models: Path
) -> None:
    shared_cluster.declare("later", models / "tiny-bert")
    before = passed(served)
    response = infer_texts(served.url, "later", "x")
    assert response.headers["x-pilotlight-start"] != "warm"
    assert passed(served) > before
    warm(served, "later", FRONTS)


def test_texts_are_streamed_through_a_front(served: servers.Pod) -> None:
    body = {"model": "writer", "prompt": "quick", "max_tokens": 5, "stream": True}
    url = f"{served.url}/openai/v1/completions"
    with httpx.stream("POST", url, json=body, trust_env=False, timeout=60) as response:
        assert response.status_code == 200
        lines = [line for line in response.iter_lines() if line]
    assert len(lines) > 2
    assert lines[-1] == "data: [DONE]"


def test_a_chunked_body_is_passed_on(served: servers.Pod) -> None:
    parts = iter([b'{"instances": ', b'["x"]}'])
    url = f"{served.url}/v1/models/default~classifier:predict"
    response = httpx.post(url, content=parts, trust_env=False, timeout=60)
    assert response.status_code == 200, response.text


def test_responses_of_fronts_are_counted(served: servers.Pod) -> None:
    """What earlier tests sent may be counted late, too."""

    def counted(status: str) -> float:
        return metric(served.url, "pilotlight_pod_requests_total", stage="entry", status=status)

    before = counted("200"), counted("400")
    for _ in range(8):
        assert predict(served.url, "classifier", "x").status_code == 200
        assert predict(served.url, "classifier", 7).status_code == 400
    servers.wait_until(
        lambda: counted("200") >= before[0] + 8 and counted("400") >= before[1] + 8, what="counts"
    )


def test_stages_of_fronts_are_measured(served: servers.Pod) -> None:
    def count(stage: str) -> float:
        return metric(served.url, "pilotlight_stage_seconds_count", stage=stage)

    for stage in ("preprocess", "infer", "postprocess"):
        before = count(stage)
        for _ in range(4):
            assert predict(served.url, "classifier", "x").status_code == 200
        servers.wait_until(lambda: count(stage) >= before + 4, what=stage)  # noqa: B023 - at once


def test_a_resent_request_that_had_begun_at_a_front_is_not_executed_again(
    served: servers.Pod,
) -> None:
    url = f"{served.url}/v1/models/default~classifier:predict"
    ids = {"x_request_id": "r1", "x_pilotlight_attempt": "front-a1"}
    assert post(url, {"instances": ["x"]}, **ids).status_code == 200
    again = post(url, {"instances": ["x"]}, **ids, x_pilotlight_resent="1")
    assert again.status_code == 502
    assert "had begun" in again.json()["error"]
