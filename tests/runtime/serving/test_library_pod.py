"""A pod with a model of each library's format: V1, V2 in JSON and binary, and gRPC agree."""

from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import pytest

from common.inference_protocol.bodies import LENGTH_HEADER, decode_outputs, encode_request
from common.inference_protocol.grpc_messages import messages
from common.inference_protocol.tensors import Tensor, numeric_tensor
from runtime.inference_request import PROTOBUF
from tests import servers
from tests.runtime import rpc
from tests.runtime.conftest import Cluster
from tests.runtime.http import post, post_bytes, predict
from tests.tabular_models import MAKERS

pytestmark = pytest.mark.slow

ROWS = [[6.8, 2.8, 4.8, 1.4], [5.1, 3.5, 1.4, 0.2]]
CLASSES = [1, 0]


@dataclass(frozen=True)
class Served:
    """A pod and the port of its gRPC service."""

    pod: servers.Pod
    port: int


@pytest.fixture(scope="module")
def served(shared_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Served:
    for name, make in MAKERS.items():
        shared_cluster.declare(name, make(tmp_path_factory.mktemp(name)))
    port = servers.free_port()
    return Served(shared_cluster.pod(slots=2, grpc_port=port), port)


def _classes(values: npt.NDArray[Any]) -> list[int]:
    """Of the rows: classes, or the likeliest of their probabilities."""
    return [int(each) for each in (values.argmax(axis=1) if values.ndim == 2 else values)]


def _request(name: str, rows: list[list[float]], *, is_raw: bool) -> Any:
    request = messages.ModelInferRequest(model_name=f"default~{name}")
    shape = [len(rows), len(rows[0])]
    entry = request.inputs.add(name="features", datatype="FP32", shape=shape)
    if is_raw:
        request.raw_input_contents.append(np.asarray(rows, np.float32).tobytes())
    else:
        entry.contents.fp32_contents.extend(np.ravel(rows))
    return request


def _grpc(port: int, name: str, rows: list[list[float]], *, is_raw: bool) -> npt.NDArray[Any]:
    response = rpc.call(port, "ModelInfer", _request(name, rows, is_raw=is_raw))
    return _values(response, is_raw=is_raw)


def _protobuf(pod: servers.Pod, name: str, rows: list[list[float]]) -> npt.NDArray[Any]:
    """By V2's message over HTTP, as the gateway sends its gRPC calls to pods."""
    content = _request(name, rows, is_raw=True).SerializeToString()
    found = post_bytes(f"{pod.url}/v2/models/{name}/infer", content, content_type=PROTOBUF)
    assert found.headers["content-type"] == PROTOBUF
    return _values(messages.ModelInferResponse.FromString(found.content), is_raw=True)


def _values(response: Any, *, is_raw: bool) -> npt.NDArray[Any]:
    """The first output."""
    output = response.outputs[0]
    kinds = {
        "FP32": (np.float32, "fp32"),
        "FP64": (np.float64, "fp64"),
        "INT64": (np.int64, "int64"),
    }
    dtype, kind = kinds[output.datatype]
    if is_raw:
        found = np.frombuffer(response.raw_output_contents[0], dtype)
    else:
        found = np.asarray(getattr(output.contents, f"{kind}_contents"), dtype)
    return found.reshape(list(output.shape))


@pytest.mark.parametrize("name", MAKERS)
def test_all_protocols_agree(name: str, served: Served) -> None:
    tensor = numeric_tensor("features", np.asarray(ROWS, np.float32))
    document = {
        "inputs": [
            {"name": "features", "datatype": "FP32", "shape": [2, 4], "data": tensor.data.tolist()}
        ]
    }
    json = post(f"{served.pod.url}/v2/models/{name}/infer", document).json()["outputs"][0]
    expected = np.reshape(json["data"], json["shape"])
    assert _classes(expected) == CLASSES
    by_v1 = predict(served.pod.url, name, *ROWS).json()["predictions"]
    v1 = np.asarray([each["label"] if isinstance(each, dict) else each for each in by_v1])
    np.testing.assert_allclose(v1, expected, rtol=1e-6)
    for is_raw in (True, False):
        found = _grpc(served.port, name, ROWS, is_raw=is_raw)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(_binary(served.pod, name, tensor).data, expected, rtol=1e-6)
    np.testing.assert_allclose(_protobuf(served.pod, name, ROWS), expected, rtol=1e-6)


def _binary(pod: servers.Pod, name: str, tensor: Tensor) -> Tensor:
    body = encode_request([tensor])
    headers = {key.replace("-", "_"): value for key, value in body.headers}
    found = post_bytes(f"{pod.url}/v2/models/{name}/infer", body.content, **headers)
    return decode_outputs(found.content, found.headers[LENGTH_HEADER])[0]


@pytest.mark.parametrize("name", MAKERS)
def test_wrong_rows_are_invalid_arguments(name: str, served: Served) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        _grpc(served.port, name, [[1.0, 2.0, 3.0]], is_raw=True)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
