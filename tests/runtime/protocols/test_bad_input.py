"""Generated invalid bodies in every protocol: refused with a reason, and the pod keeps serving."""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from common.inference_protocol import InvalidRequest
from common.inference_protocol.bodies import LENGTH_HEADER
from common.inference_protocol.encodings import to_raw
from common.inference_protocol.grpc_messages import messages
from common.inference_protocol.tensors import DATATYPES, numeric_tensor
from runtime.protocols.routes import MAX_JSON_BYTES, read_json
from tests import servers
from tests.gateway.asynchronous import run_async
from tests.runtime import rpc
from tests.runtime.conftest import Cluster
from tests.runtime.http import predict

MOST_BODY_BYTES = 200_000


@dataclass(frozen=True)
class Served:
    """A pod, and connections shared by all examples."""

    pod: servers.Pod
    http: httpx.Client
    grpc: grpc.Channel

    def post(self, path: str, content: bytes, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.post(path, content=content, headers=named)

    def infer(self, content: bytes) -> tuple[grpc.StatusCode, str]:
        """The code and the detail of a `ModelInfer` call with these bytes."""
        send = self.grpc.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        try:
            send(content, timeout=60)
        except grpc.RpcError as error:
            return error.code(), error.details()
        return grpc.StatusCode.OK, "fine"


@pytest.fixture(scope="module")
def served(shared_cluster: Cluster, models: Path) -> Iterator[Served]:
    shared_cluster.declare("text", models / "tiny-bert")
    shared_cluster.declare("image", models / "tiny-vit")
    port = servers.free_port()
    pod = shared_cluster.pod(slots=4, grpc_port=port, max_body_bytes=MOST_BODY_BYTES)
    predict(pod.url, "text", "x")
    predict(pod.url, "text", "x")
    with (
        httpx.Client(base_url=pod.url, trust_env=False, timeout=60) as client,
        rpc.channel(port) as channel,
    ):
        yield Served(pod, client, channel)
        assert predict(pod.url, "text", "x").status_code == 200
        assert "failed with an unexpected error" not in pod.log


EXAMPLES = settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
ODD_NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 7, 2**31, 2**40, 2**62, -(2**62)])
SHAPES = st.lists(ODD_NUMBERS, max_size=4) | st.just([1] * 70) | st.just([2**31] * 8)
NAMES = st.sampled_from(["text", "image", "x", "", "é", "n" * 5000])
PYTHON_WORDS = re.compile(r"NoneType|\b(None|True|False|dict|str|int|float|bool)\b|Python")
TEXTS = st.text(max_size=8).filter(lambda text: not PYTHON_WORDS.search(text))
"""Messages quote what was sent."""
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
MODELS = st.sampled_from(["text", "image"])


def assert_refused_or_fine(response: httpx.Response) -> None:
    assert response.status_code == 200 or 400 <= response.status_code < 500, response.text
    if response.status_code != 200:
        assert response.json()["error"]
        assert not PYTHON_WORDS.search(response.text), response.text


@pytest.mark.slow
@EXAMPLES
@given(model=MODELS, body=st.binary(max_size=300))
@pytest.mark.parametrize("path", ["/v1/models/{}:predict", "/v2/models/{}/infer"])
def test_any_bytes(served: Served, path: str, model: str, body: bytes) -> None:
    assert_refused_or_fine(served.post(path.format(model), body))


@EXAMPLES
@given(model=MODELS, instances=VALUES)
def test_any_v1_instances(served: Served, model: str, instances: Any) -> None:
    body = orjson.dumps({"instances": instances})
    assert_refused_or_fine(served.post(f"/v1/models/{model}:predict", body))


entries = st.fixed_dictionaries(
    {"name": NAMES | VALUES, "datatype": st.sampled_from(DATATYPES) | VALUES, "shape": SHAPES},
    optional={
        "data": VALUES,
        "parameters": VALUES | st.fixed_dictionaries({"binary_data_size": ODD_NUMBERS | VALUES}),
    },
)


@pytest.mark.slow
@EXAMPLES
@given(
    model=MODELS,
    document=st.fixed_dictionaries(
        {"inputs": st.lists(entries, max_size=3)},
        optional={"outputs": VALUES | st.lists(st.builds(dict, name=NAMES)), "parameters": VALUES},
    ),
    tail=st.binary(max_size=40),
    shift=st.integers(-3, 3),
)
def test_any_v2_body(
    served: Served, model: str, document: dict[str, Any], tail: bytes, shift: int
) -> None:
    head = orjson.dumps(document)
    headers = {LENGTH_HEADER: str(len(head) + shift)}
    assert_refused_or_fine(served.post(f"/v2/models/{model}/infer", head + tail, **headers))


@EXAMPLES
@given(
    datatype=st.sampled_from(DATATYPES), shape=SHAPES, content=st.binary(max_size=64), model=MODELS
)
def test_any_binary_tensor(
    served: Served, datatype: str, shape: list[int], content: bytes, model: str
) -> None:
    entry = {
        "name": model,
        "datatype": datatype,
        "shape": shape,
        "parameters": {"binary_data_size": len(content)},
    }
    head = orjson.dumps({"inputs": [entry]})
    response = served.post(
        f"/v2/models/{model}/infer", head + content, **{LENGTH_HEADER: str(len(head))}
    )
    assert_refused_or_fine(response)


V2 = "/v2/models/text/infer"
TEXT = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["x"]}


@pytest.mark.parametrize(
    ("path", "body", "detail"),
    [
        pytest.param(V2, b'{"inputs":[{"data":[NaN]}]}', "not valid JSON", id="nan"),
        pytest.param(V2, b'{"inputs": ["\xff"]}', "not valid JSON: not UTF-8", id="not-utf-8"),
        pytest.param(V2, b'{"inputs": ["\\ud800"]}', "not valid JSON", id="lone-surrogate"),
        pytest.param(V2, b'{"inputs":' + b"[" * 5000 + b"]" * 5000 + b"}", "JSON", id="deep"),
        pytest.param(
            V2, {"inputs": [{**TEXT, "shape": [1] * 40}]}, "at most 32 sizes", id="dimensions"
        ),
        pytest.param(
            V2,
            {"inputs": [{**TEXT, "datatype": "FP32", "shape": [0, 2**39, 2**39], "data": []}]},
            "'shape' must be",
            id="huge-beside-nothing",
        ),
        pytest.param(V2, {"inputs": [TEXT, TEXT]}, "two are 'text'", id="same-name"),
        pytest.param(
            V2, {"inputs": [TEXT], "outputs": [{"name": "nothing"}]}, "'nothing'", id="output"
        ),
        pytest.param(
            V2,
            {"inputs": [TEXT], "outputs": [{"name": "label"}, {"name": "label"}]},
            "two are 'label'",
            id="output-twice",
        ),
        pytest.param(
            V2,
            {"inputs": [TEXT], "parameters": {"binary_data_output": "yes"}},
            "true or",
            id="flag",
        ),
        pytest.param(
            V2,
            {"inputs": [{**TEXT, "datatype": "FP32", "data": [1e300]}]},
            "does not fit FP32",
            id="overflow",
        ),
        pytest.param(
            "/v1/models/text:predict", {"instances": [[[]]]}, "instances[0] must be", id="nested"
        ),
        pytest.param(
            "/v2/repository/index", {"ready": "yes"}, "'ready' must be true or false", id="index"
        ),
        pytest.param("/v2/repository/index", b"[", "not valid JSON", id="index-not-json"),
        pytest.param(
            "/v2/repository/models/text/load",
            {"parameters": {"config": "{}"}},
            "'parameters' may hold only 'tier'",
            id="load-with-config",
        ),
        pytest.param(
            "/v2/repository/models/text/load",
            {"parameters": {"max_other_copies": True}},
            "'max_other_copies' must be an integer from -1",
            id="load-with-wrong-copies",
        ),
        pytest.param(
            "/v2/repository/models/text/load",
            {"parameters": {"withdrawable": True, "due_ms": -1}},
            "'due_ms' must be a number from 0",
            id="load-due-in-the-past",
        ),
        pytest.param(
            "/v2/repository/models/text/load",
            {"parameters": {"due_ms": 5}},
            "'due_ms' is for loads with 'withdrawable'",
            id="load-due-but-kept",
        ),
    ],
)
def test_known_faults_are_refused_with_a_reason(
    served: Served, path: str, body: object, detail: str
) -> None:
    response = served.post(path, body if isinstance(body, bytes) else orjson.dumps(body))
    assert response.status_code == 400, response.text
    assert detail in response.json()["error"]


@pytest.mark.parametrize(
    ("header", "value"),
    [
        pytest.param(LENGTH_HEADER, "9" * 5000, id="length-of-5000-digits"),
        pytest.param(LENGTH_HEADER, "-1", id="negative-length"),
        pytest.param("x-pilotlight-load-token", "9" * 5000, id="token-of-5000-digits"),
        pytest.param("content-encoding", "gzip", id="not-compressed"),
    ],
)
def test_invalid_headers_are_refused_with_a_reason(served: Served, header: str, value: str) -> None:
    response = served.post(V2, orjson.dumps({"inputs": [TEXT]}), **{header: value})
    assert response.status_code == 400, response.text
    assert header in response.json()["error"]


def test_no_error_repeats_a_whole_body(served: Served) -> None:
    entry = {**TEXT, "datatype": "x" * 100_000}
    response = served.post(V2, orjson.dumps({"inputs": [entry]}))
    assert response.status_code == 400
    assert len(response.content) < 1000


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/v2/repository/index", id="index"),
        pytest.param("/v2/repository/models/text/load", id="load"),
        pytest.param("/v2/models/text/profile", id="profile"),
    ],
)
def test_repository_requests_have_a_size_limit(served: Served, path: str) -> None:
    response = served.post(path, b" " * (MAX_JSON_BYTES + 1))
    assert response.status_code == 413
    assert f"{MAX_JSON_BYTES} bytes" in response.json()["error"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        pytest.param("/v2/models/text/infer/more", 404, id="no-such-path"),
        pytest.param("/v2/models/text/versions/7/infer", 404, id="no-such-version"),
        pytest.param("/v2/health/live", 405, id="no-such-method"),
    ],
)
def test_unknown_paths_get_errors_in_kserves_form(served: Served, path: str, status: int) -> None:
    response = served.post(path, orjson.dumps({"inputs": [TEXT]}))
    assert (response.status_code, list(response.json())) == (status, ["error"])


@pytest.mark.parametrize("path", ["/v1/models/text:predict", "/v1/models/text:explain"])
def test_a_get_of_an_inference_path_is_405(served: Served, path: str) -> None:
    response = served.http.get(path)
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


GOOD_CODES = {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}


def assert_told(served: Served, content: bytes) -> None:
    code, detail = served.infer(content)
    assert code in GOOD_CODES, detail
    assert detail


@EXAMPLES
@given(content=st.binary(max_size=200))
def test_any_grpc_message(served: Served, content: bytes) -> None:
    assert_told(served, content)


@EXAMPLES
@given(
    model=MODELS,
    name=st.sampled_from(["text", "image", "", "é"]),
    datatype=st.sampled_from([*DATATYPES, "", "FLOAT"]),
    shape=st.lists(ODD_NUMBERS, max_size=5) | st.just([1] * 70),
    raw=st.none() | st.lists(st.binary(max_size=40), min_size=1, max_size=2),
    texts=st.lists(st.binary(max_size=10), max_size=3),
    numbers=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
    is_doubled=st.booleans(),
)
def test_any_grpc_tensor(served: Served, **parts: Any) -> None:
    message = messages.ModelInferRequest(model_name=parts["model"])
    entry = message.inputs.add(name=parts["name"], datatype=parts["datatype"], shape=parts["shape"])
    entry.contents.bytes_contents.extend(parts["texts"])
    entry.contents.int_contents.extend(parts["numbers"])
    if parts["raw"] is not None:
        entry.ClearField("contents")
        message.raw_input_contents.extend(parts["raw"])
    if parts["is_doubled"]:
        message.inputs.append(entry)
    assert_told(served, message.SerializeToString())


INPUT_IDS = numeric_tensor("input_ids", np.zeros((1, 3), np.int64))


@EXAMPLES
@given(
    name=st.sampled_from(["input_ids", "attention_mask", "labels", "return_dict", "é"]),
    datatype=st.sampled_from(["INT64", "FP32", "UINT8", "BOOL", "FP16", "BF16", "UINT64"]),
    shape=st.lists(st.integers(0, 4), max_size=3),
)
def test_any_tensors_for_the_inference_stage(
    served: Served, name: str, datatype: str, shape: list[int]
) -> None:
    width = {"INT64": 8, "UINT64": 8, "FP32": 4, "FP16": 2, "BF16": 2}.get(datatype, 1)
    content = b"\1" * (int(np.prod(shape)) * width)
    entries = [{"name": name, "datatype": datatype, "shape": shape, "parameters": {}}]
    entries[0]["parameters"] = {"binary_data_size": len(content)}
    if name != "input_ids":
        ids = to_raw(INPUT_IDS)
        about = {"name": "input_ids", "datatype": "INT64", "shape": [1, 3]}
        entries.append({**about, "parameters": {"binary_data_size": len(ids)}})
        content += ids
    head = orjson.dumps({"inputs": entries})
    headers = {LENGTH_HEADER: str(len(head)), "x-pilotlight-stage": "infer"}
    assert_refused_or_fine(served.post(V2, head + content, **headers))


def test_refuses_a_truncated_string(served: Served) -> None:
    message = rpc.infer_texts("text", "x", is_raw=True)
    message.raw_input_contents[0] = struct.pack("<I", 9) + b"abc"
    code, detail = served.infer(message.SerializeToString())
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "inside a string of 9" in detail


@run_async
async def test_a_client_that_disconnects_within_a_small_body_is_no_fault() -> None:
    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    with pytest.raises(InvalidRequest, match="disconnected"):
        await read_json(Request({"type": "http", "headers": []}, receive))
