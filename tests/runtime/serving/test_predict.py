"""Requests to one pod: all tasks, both protocols, provenance headers, invalid input."""

from pathlib import Path

import numpy as np
import orjson
import pytest

from common.inference_protocol.bodies import LENGTH_HEADER, decode_outputs, encode_request
from common.inference_protocol.tensors import Tensor, bytes_tensor, numeric_tensor
from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import get, infer_texts, picture, post, post_bytes, predict


@pytest.fixture(scope="module")
def served(shared_cluster: Cluster, models: Path) -> servers.Pod:
    """A pod with one model of each task."""
    shared_cluster.declare("translator", models / "tiny-t5")
    shared_cluster.declare("classifier", models / "tiny-bert")
    shared_cluster.declare("eye", models / "tiny-vit")
    shared_cluster.declare("embedder", models / "tiny-bert", task="text-embedding")
    return shared_cluster.pod(slots=4, max_body_bytes=100_000)


def test_translates_over_v1(served: servers.Pod) -> None:
    response = predict(served.url, "translator", "quick brown fox", {"text": "jumps over"})
    assert response.status_code == 200, response.text
    texts = response.json()["predictions"]
    assert len(texts) == 2
    assert all(len(text) > 3 for text in texts)


def test_classifies_text_over_v1(served: servers.Pod) -> None:
    (prediction,) = predict(served.url, "classifier", "a fine day").json()["predictions"]
    assert prediction["label"].startswith("class-")
    assert 0 < prediction["score"] <= 1


def test_classifies_image_over_v1(served: servers.Pod) -> None:
    response = predict(served.url, "eye", {"image_bytes": {"b64": picture()}})
    (prediction,) = response.json()["predictions"]
    assert prediction["label"].startswith("class-")


def test_embeds_text_as_vectors_of_length_one(served: servers.Pod) -> None:
    response = predict(served.url, "embedder", "one", "quite another text")
    vectors = np.array(response.json()["predictions"])
    assert vectors.shape == (2, 32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)


def test_padding_does_not_change_an_embedding(served: servers.Pod) -> None:
    alone = predict(served.url, "embedder", "one").json()["predictions"][0]
    beside = predict(served.url, "embedder", "one", "a much longer text").json()["predictions"][0]
    np.testing.assert_allclose(alone, beside, atol=1e-5)


def test_v1_and_v2_agree(served: servers.Pod) -> None:
    v1 = predict(served.url, "translator", "quick brown fox").json()["predictions"]
    v2 = infer_texts(served.url, "translator", "quick brown fox").json()
    assert v2["outputs"] == [{"name": "text", "shape": [1], "datatype": "BYTES", "data": v1}]


def infer_binary(pod: servers.Pod, model: str, *tensors: Tensor) -> tuple[Tensor, ...]:
    body = encode_request(tensors)
    url = f"{pod.url}/v2/models/default~{model}/infer"
    response = post_bytes(url, body.content, **dict(body.headers))
    assert response.status_code == 200, response.text
    return decode_outputs(response.content, response.headers.get(LENGTH_HEADER))


def test_v2_binary_and_json_agree(served: servers.Pod) -> None:
    (binary,) = infer_binary(served, "embedder", bytes_tensor("text", [b"one", b"two"]))
    (output,) = infer_texts(served.url, "embedder", "one", "two").json()["outputs"]
    assert (output["name"], output["datatype"]) == ("embedding", "FP32")
    np.testing.assert_allclose(binary.data.ravel(), output["data"], rtol=1e-6)
    assert list(binary.shape) == output["shape"]


def test_pixels_and_encoded_images_agree(served: servers.Pod) -> None:
    pixels = np.zeros((1, 10, 20, 3), dtype=np.uint8)
    pixels[..., 0] = 255
    label, score = infer_binary(served, "eye", numeric_tensor("image", pixels))
    (expected,) = predict(served.url, "eye", {"image_bytes": {"b64": picture()}}).json()[
        "predictions"
    ]
    assert label.data[0].decode() == expected["label"]
    assert score.data[0] == pytest.approx(expected["score"], rel=1e-5)


def test_response_has_the_clients_model_name_and_request_id(served: servers.Pod) -> None:
    url = f"{served.url}/v2/models/default~embedder/infer"
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["x"]}
    response = post(
        url,
        {"id": "r-1", "inputs": [tensor]},
        x_pilotlight_model_name="my-name",
        x_request_id="abc",
    )
    assert response.json()["model_name"] == "my-name"
    assert response.json()["id"] == "r-1"
    assert response.headers["x-request-id"] == "abc"


def test_response_has_provenance_headers(served: servers.Pod) -> None:
    predict(served.url, "embedder", "x")
    headers = predict(served.url, "embedder", "x").headers
    assert headers["x-pilotlight-start"] == "warm"
    assert headers["x-pilotlight-pod"] == served.name
    assert headers["x-pilotlight-predict-pod"] == served.name
    timings = headers["server-timing"]
    assert [part.partition(";")[0].strip() for part in timings.split(",")] == [
        "preprocess",
        "infer",
        "postprocess",
    ]


V1 = "/v1/models/default~embedder:predict"
V2 = "/v2/models/default~embedder/infer"


def tensor(**changes: object) -> dict[str, object]:
    return {
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["x"], **changes}]
    }


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        pytest.param(V1, b"{", "not valid JSON", id="malformed"),
        pytest.param(V1, b"", "empty", id="empty"),
        pytest.param(V1, b"[1]", "must be a JSON object, was an array", id="not-an-object"),
        pytest.param(V1, {"instance": []}, "'instances'", id="no-instances"),
        pytest.param(V1, {"instances": "x"}, "must be an array, was a string", id="a-string"),
        pytest.param(V1, {"instances": []}, "1 to 1024 items, held 0", id="no-items"),
        pytest.param(V1, {"instances": [3]}, "instances[0]", id="a-number"),
        pytest.param(V1, {"instances": ["a", {"txt": "b"}]}, "instances[1]", id="no-text"),
        pytest.param(V1, {"instances": ["a"] * 1025}, "held 1025", id="too-many-items"),
        pytest.param(V2, {"inputs": []}, "array 'inputs'", id="no-inputs"),
        pytest.param(V2, {"inputs": [1]}, "inputs[0] must be an object", id="input-a-number"),
        pytest.param(V2, tensor(shape=[2]), "shape [2] needs 2 elements", id="wrong-shape"),
        pytest.param(V2, tensor(shape=[-1]), "'shape' must be", id="negative-shape"),
        pytest.param(V2, tensor(datatype="TEXT"), "'datatype' must be one of", id="datatype"),
        pytest.param(V2, tensor(data=[1]), "must be strings", id="numbers-as-bytes"),
        pytest.param(V2, tensor(data="x"), "must be an array, was a string", id="data-a-string"),
        pytest.param(
            V2, tensor(datatype="FP32", data=[1.5]), "must be BYTES, was FP32", id="not-bytes"
        ),
        pytest.param(
            V2, tensor(parameters={"binary_data_size": 9}), "binary_data_size", id="binary-size"
        ),
        pytest.param(
            "/v1/models/default~eye:predict",
            {"instances": [{"image_bytes": {"b64": "!!"}}]},
            "must be base64",
            id="not-base64",
        ),
        pytest.param(
            "/v1/models/default~eye:predict",
            {"instances": [{"image_bytes": {"b64": "YWJj"}}]},
            "not an image",
            id="not-an-image",
        ),
    ],
)
def test_invalid_input_is_refused_with_a_reason(
    served: servers.Pod, path: str, body: object, message: str
) -> None:
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    response = post_bytes(served.url + path, content)
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]


@pytest.mark.parametrize(
    ("header", "value"),
    [
        pytest.param("x_pilotlight_deadline_ms", "soon", id="deadline"),
        pytest.param("x_pilotlight_load_token", "-1", id="load-token"),
        pytest.param("x_pilotlight_predict", "http://x/", id="predict"),
        pytest.param("x_pilotlight_stage", "all", id="stage"),
        pytest.param("x_pilotlight_simulate", "preprocess=1", id="simulate-not-allowed"),
        pytest.param("inference_header_content_length", "999999", id="header-length"),
    ],
)
def test_refuses_invalid_headers(served: servers.Pod, header: str, value: str) -> None:
    response = post(served.url + V2, tensor(), **{header: value})
    assert response.status_code == 400
    assert header.replace("_", "-") in response.json()["error"]


def test_refuses_a_body_over_the_limit(served: servers.Pod) -> None:
    response = post_bytes(served.url + V1, b" " * 100_001)
    assert response.status_code == 413
    assert "100000 bytes" in response.json()["error"]


def test_refuses_a_chunked_body_over_the_limit(served: servers.Pod) -> None:
    import httpx

    response = httpx.post(
        served.url + V1, content=(b" " * 10_000 for _ in range(50)), trust_env=False, timeout=60
    )
    assert response.status_code == 413


def test_unknown_model_is_not_found(served: servers.Pod) -> None:
    response = predict(served.url, "nobody", "x")
    assert response.status_code == 404
    assert "default/nobody" in response.json()["error"]


def test_tensors_that_do_not_fit_the_network_are_invalid_input(served: servers.Pod) -> None:
    body = encode_request(
        [
            numeric_tensor("input_ids", np.full((1, 4), 10**6, dtype=np.int64)),
            numeric_tensor("attention_mask", np.ones((1, 4), dtype=np.int64)),
        ]
    )
    response = post_bytes(
        served.url + V2, body.content, x_pilotlight_stage="infer", **dict(body.headers)
    )
    assert response.status_code == 400, response.text


def test_bare_names_are_in_the_default_namespace(served: servers.Pod) -> None:
    assert post(f"{served.url}/v1/models/embedder:predict", {"instances": ["x"]}).status_code == 200


def test_kserves_own_routes_remain(served: servers.Pod) -> None:
    predict(served.url, "embedder", "x")
    assert get(f"{served.url}/v2/health/live").json() == {"live": True}
    assert "default~embedder" in get(f"{served.url}/v2/models").json()["models"]
    metadata = get(f"{served.url}/v2/models/default~embedder").json()
    assert metadata["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert "request_predict_seconds" in get(f"{served.url}/metrics").text


def test_repository_index_has_the_state_of_models(served: servers.Pod) -> None:
    predict(served.url, "embedder", "x")
    index = {entry["name"]: entry for entry in get(f"{served.url}/v2/repository/index").json()}
    assert index["default~embedder"]["state"] == "READY"
    assert set(index) == {f"default~{n}" for n in ("embedder", "eye", "translator", "classifier")}


@pytest.mark.parametrize(("model", "status"), [("embedder", 501), ("nobody", 404)])
def test_explain_is_not_found(served: servers.Pod, model: str, status: int) -> None:
    predict(served.url, "embedder", "x")
    response = post(f"{served.url}/v1/models/default~{model}:explain", {"instances": ["x"]})
    assert (response.status_code, list(response.json())) == (status, ["error"])


def test_metadata_needs_no_weights(served: servers.Pod) -> None:
    post(f"{served.url}/v2/repository/models/default~classifier/unload")
    index = {entry["name"]: entry for entry in get(f"{served.url}/v2/repository/index").json()}
    entry = index["default~classifier"]
    assert entry["state"] == "UNAVAILABLE"
    model = f"{served.url}/v2/models/default~classifier"
    metadata = get(model).json()
    assert metadata["versions"] == [entry["version"]]
    assert [output["name"] for output in metadata["outputs"]] == ["label", "score"]
    assert get(f"{model}/versions/{entry['version']}").json() == metadata
    assert get(f"{model}/ready").status_code == 503
    assert get(f"{model}/versions/7").status_code == 404


def test_a_version_is_a_generation(served: servers.Pod) -> None:
    index = {entry["name"]: entry for entry in get(f"{served.url}/v2/repository/index").json()}
    version = index["default~embedder"]["version"]
    url = f"{served.url}/v2/models/default~embedder/versions"
    response = post(f"{url}/{version}/infer", tensor())
    assert response.status_code == 200, response.text
    assert get(f"{url}/{version}/ready").json()["ready"] is True
    refused = post(f"{url}/7/infer", tensor())
    assert refused.status_code == 404
    assert f"it has '{version}'" in refused.json()["error"]


def test_server_metadata_lists_extensions(served: servers.Pod) -> None:
    server = get(f"{served.url}/v2").json()
    assert server["name"] == "pilotlight"
    assert {"binary_tensor_data", "model_repository_extension"} <= set(server["extensions"])
    assert get(f"{served.url}/v2/models").json() == get(f"{served.url}/v1/models").json()


def test_index_can_omit_models_that_are_not_ready(served: servers.Pod) -> None:
    post(f"{served.url}/v2/repository/models/default~classifier/unload")
    predict(served.url, "embedder", "x")
    index = f"{served.url}/v2/repository/index"
    ready = [entry["name"] for entry in post(index, {"ready": True}).json()]
    assert "default~embedder" in ready
    assert "default~classifier" not in ready
    assert len(post(index, {"ready": False}).json()) == 4


def test_sends_only_requested_outputs(served: servers.Pod) -> None:
    url = f"{served.url}/v2/models/default~classifier/infer"
    response = post(url, {**tensor(), "outputs": [{"name": "score"}]})
    assert [output["name"] for output in response.json()["outputs"]] == ["score"]
