"""V2's messages over gRPC: round trips, and agreement with KServe's SDK."""

import contextlib
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st
from kserve import InferInput, InferRequest, InferResponse
from kserve.protocol.grpc import grpc_predict_v2_pb2
from kserve.protocol.infer_type import RequestedOutput

from common.inference_protocol import InvalidRequest
from common.inference_protocol.bodies import (
    LENGTH_HEADER,
    EncodedBody,
    V2Request,
    decode_request,
    encode_response,
)
from common.inference_protocol.grpc_messages import (
    CONTENTS_OF,
    POOL,
    decode_message,
    encode_message,
    messages,
    parse_message,
)
from common.inference_protocol.tensors import NUMPY_OF, Tensor, bytes_tensor, numeric_tensor
from tests.servers import REPOSITORY

ARRAYS = {
    "BOOL": np.array([[True, False, True]]),
    "BYTES": np.array([["a", "", "é☃"]], dtype=object),
    **{
        name: np.array([[0, 1, 100]], dtype=dtype)
        for name, dtype in NUMPY_OF.items()
        if name != "BOOL"
    },
}


def sdk_request(datatype: str, *, is_binary: bool) -> InferRequest:
    tensor = InferInput("x", list(ARRAYS[datatype].shape), datatype)
    tensor.set_data_from_numpy(ARRAYS[datatype], binary_data=is_binary)
    return InferRequest("m", [tensor], request_id="r-1")


def our_tensor(datatype: str) -> Tensor:
    data = ARRAYS[datatype]
    if datatype != "BYTES":
        return numeric_tensor("x", data)
    encoded = bytes_tensor("x", [text.encode() for text in data.ravel()])
    return Tensor("x", "BYTES", encoded.data.reshape(data.shape))


def assert_read_well(request: V2Request, datatype: str) -> None:
    (tensor,) = request.inputs
    assert (tensor.name, tensor.datatype, request.id) == ("x", datatype, "r-1")
    np.testing.assert_array_equal(tensor.data, our_tensor(datatype).data)


def assert_sdk_reads(response: InferResponse, datatype: str) -> None:
    (output,) = response.outputs
    got = output.as_numpy()
    if datatype == "BYTES":
        got = np.array([v.encode() if isinstance(v, str) else v for v in got.ravel()], dtype=object)
        got = got.reshape(ARRAYS[datatype].shape)
    assert (output.name, output.datatype, response.id) == ("x", datatype, "r-1")
    np.testing.assert_array_equal(got, our_tensor(datatype).data)


def interface(file: Any) -> str:
    """The messages and methods of a file, without what protobuf derives from them."""
    described = descriptor_pb2.FileDescriptorProto.FromString(file.serialized_pb)
    described.ClearField("name")
    for method in described.service[0].method:
        method.ClearField("options")
    return re.sub(r" +json_name: .*\n", "", str(described))


def test_the_protocol_is_kserves() -> None:
    ours = POOL.FindFileByName("open_inference.proto")
    assert interface(ours) == interface(grpc_predict_v2_pb2.DESCRIPTOR)


def test_the_compiled_protocols_are_those_of_their_texts(tmp_path: Path) -> None:
    subprocess.run([REPOSITORY / "scripts/compile-protocol", tmp_path], check=True)
    for kept in (
        REPOSITORY / "common/inference_protocol/open_inference.binpb",
        REPOSITORY / "gateway/picker/external_processor.binpb",
        REPOSITORY / "autoscaler/external_scaler.binpb",
    ):
        assert (tmp_path / kept.name).read_bytes() == kept.read_bytes()


@pytest.mark.parametrize("datatype", ARRAYS)
@pytest.mark.parametrize("is_binary", [True, False], ids=["raw", "typed"])
def test_decodes_messages_of_the_sdk(datatype: str, is_binary: bool) -> None:
    if datatype == "FP16" and not is_binary:
        pytest.skip("neither the protocol nor the SDK sends FP16 but raw")
    message = sdk_request(datatype, is_binary=is_binary).to_grpc()
    assert bool(message.raw_input_contents) == is_binary
    assert_read_well(decode_message(message), datatype)


@pytest.mark.parametrize("datatype", ARRAYS)
@pytest.mark.parametrize("is_binary", [True, False], ids=["raw", "typed"])
def test_sdk_decodes_our_messages(datatype: str, is_binary: bool) -> None:
    request = V2Request((), id="r-1", is_binary=is_binary)
    content = encode_message([our_tensor(datatype)], model_name="m", request=request)
    message = messages.ModelInferResponse.FromString(content)
    assert bool(message.raw_output_contents) == (is_binary or datatype == "FP16")
    assert_sdk_reads(InferResponse.from_grpc(message), datatype)


@pytest.mark.parametrize("datatype", ARRAYS)
@pytest.mark.parametrize("is_binary", [True, False], ids=["binary", "json"])
def test_decodes_bodies_of_the_sdk(datatype: str, is_binary: bool) -> None:
    if datatype == "FP16" and not is_binary:
        pytest.skip("neither the protocol nor the SDK sends FP16 but in binary")
    body, length = sdk_request(datatype, is_binary=is_binary).to_rest()
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    assert (length is not None) == is_binary
    assert_read_well(decode_request(content, str(length) if length else None), datatype)


@pytest.mark.parametrize("datatype", ARRAYS)
@pytest.mark.parametrize("is_binary", [True, False], ids=["binary", "json"])
def test_sdk_decodes_our_bodies(datatype: str, is_binary: bool) -> None:
    request = V2Request((), id="r-1", is_binary=is_binary)
    body = encode_response([our_tensor(datatype)], model_name="m", request=request)
    length = tokens_per_row(body)
    assert (length != len(body.content)) == (is_binary or datatype == "FP16")
    assert_sdk_reads(InferResponse.from_bytes(body.content, length), datatype)


def tokens_per_row(body: EncodedBody) -> int:
    return int(dict(body.headers).get(LENGTH_HEADER, len(body.content)))


def test_decodes_requested_outputs_of_the_sdk() -> None:
    request = sdk_request("FP32", is_binary=True)
    request.request_outputs = [RequestedOutput("b"), RequestedOutput("a")]
    read = decode_message(request.to_grpc())
    outputs = [numeric_tensor(name, np.ones(1, np.float32)) for name in ("a", "b", "c")]
    response = messages.ModelInferResponse.FromString(
        encode_message(outputs, model_name="m", request=read)
    )
    assert [output.name for output in response.outputs] == ["b", "a"]
    assert len(response.raw_output_contents) == 2


def message_of(**changes: Any) -> Any:
    message = messages.ModelInferRequest(model_name="m")
    fields = {"name": "x", "datatype": "FP32", "shape": [2], **changes}
    message.inputs.add(**fields).contents.fp32_contents.extend([1, 2])
    return message


def with_raw(*raw: bytes) -> Any:
    message = message_of()
    message.inputs[0].ClearField("contents")
    message.raw_input_contents.extend(raw)
    return message


def both_forms() -> Any:
    message = message_of()
    message.raw_input_contents.append(b"\0" * 8)
    return message


def twice() -> Any:
    message = message_of()
    message.inputs.append(message.inputs[0])
    return message


def too_large_for_int8() -> Any:
    message = messages.ModelInferRequest(model_name="m")
    entry = message.inputs.add(name="x", datatype="INT8", shape=[1])
    entry.contents.int_contents.append(300)
    return message


@pytest.mark.parametrize(
    ("message", "detail"),
    [
        pytest.param(messages.ModelInferRequest(), "one tensor or more", id="no-inputs"),
        pytest.param(message_of(name=""), "'name'", id="no-name"),
        pytest.param(message_of(datatype="FLOAT"), "'datatype' must be", id="datatype"),
        pytest.param(message_of(datatype="INT32"), "needs 2 elements in int_con", id="wrong-field"),
        pytest.param(message_of(datatype="FP16"), "only be sent in raw", id="typed-half"),
        pytest.param(message_of(datatype="BF16"), "only be sent in raw", id="typed-brain-half"),
        pytest.param(message_of(shape=[3]), "needs 3 elements", id="count"),
        pytest.param(message_of(shape=[-2]), "'shape' must be", id="negative"),
        pytest.param(message_of(shape=[2**62, 2**62]), "'shape' must be", id="huge"),
        pytest.param(message_of(shape=[0, 2**62]), "'shape' must be", id="huge-beside-nothing"),
        pytest.param(message_of(shape=[1] * 33), "'shape' must be", id="too-many-dimensions"),
        pytest.param(with_raw(b"\0" * 7), "needs 8 bytes, got 7", id="truncated"),
        pytest.param(with_raw(b"", b""), "one entry for each of the 1", id="too-many-raw"),
        pytest.param(both_forms(), "exclude each other", id="raw-and-typed"),
        pytest.param(twice(), "two are 'x'", id="same-name"),
        pytest.param(too_large_for_int8(), "does not fit INT8", id="overflow"),
    ],
)
def test_refuses_invalid_messages(message: Any, detail: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_message(message)
    assert detail in str(caught.value)


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_raise_invalid_request(content: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        decode_message(parse_message(messages.ModelInferRequest, content))


def test_raw_contents_are_not_copied_into_lists() -> None:
    message = with_raw(np.arange(2, dtype=np.float32).tobytes())
    (tensor,) = decode_message(message).inputs
    assert not tensor.data.flags.owndata


def test_every_datatype_has_typed_or_raw_contents() -> None:
    assert set(CONTENTS_OF) | {"FP16"} == set(ARRAYS)
