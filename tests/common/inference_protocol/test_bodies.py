"""The V2 codec: round trips, and InvalidRequest for every invalid body."""

import contextlib
import struct

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from common.inference_protocol import InvalidRequest
from common.inference_protocol.bodies import (
    LENGTH_HEADER,
    V2Request,
    decode_outputs,
    decode_request,
    encode_request,
    encode_response,
)
from common.inference_protocol.encodings import from_raw, to_raw
from common.inference_protocol.tensors import (
    NUMPY_OF,
    Tensor,
    bytes_tensor,
    numeric_tensor,
    parse_tensor_spec,
    plain_values,
    v1_values,
)


def assert_same(one: Tensor, other: Tensor) -> None:
    assert (one.name, one.datatype, one.shape) == (other.name, other.datatype, other.shape)
    np.testing.assert_array_equal(one.data, other.data)


numeric = st.sampled_from(sorted(NUMPY_OF.values(), key=str)).flatmap(
    lambda dtype: arrays.arrays(
        dtype,
        arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4),
        elements={"allow_nan": False, "allow_infinity": False} if dtype.kind == "f" else None,
    )
)


@given(numeric, st.lists(st.binary(max_size=20), max_size=5))
def test_binary_round_trip(values: np.ndarray, texts: list[bytes]) -> None:
    sent = (numeric_tensor("numbers", values), bytes_tensor("texts", texts))
    body = encode_request(sent)
    got = decode_request(body.content, dict(body.headers)[LENGTH_HEADER])
    assert got.is_binary
    for one, other in zip(sent, got.inputs, strict=True):
        assert_same(one, other)


@given(numeric, st.lists(st.text(max_size=20), max_size=5))
def test_json_round_trip(values: np.ndarray, texts: list[str]) -> None:
    if values.dtype == np.float16:
        values = values.astype(np.float32)
    sent = (numeric_tensor("numbers", values), bytes_tensor("texts", [t.encode() for t in texts]))
    body = encode_response(sent, model_name="m", request=V2Request(()))
    assert dict(body.headers) == {"content-type": "application/json"}
    for one, other in zip(sent, decode_outputs(body.content, None), strict=True):
        assert_same(one, other)


@given(st.binary(max_size=200), st.one_of(st.none(), st.text(max_size=3), st.integers(-5, 300)))
def test_any_body_decodes_or_raises_invalid_request(body: bytes, length: object) -> None:
    with pytest.raises(InvalidRequest):
        decode_request(body, None if length is None else str(length))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["text", "", 3]) | json_values,
            "datatype": st.sampled_from([*NUMPY_OF, "BYTES"]) | json_values,
            "shape": st.lists(st.integers(-1, 3), max_size=3) | json_values,
            "data": json_values,
        },
        optional={"parameters": json_values},
    )
)
def test_any_tensor_entry_decodes_or_raises_invalid_request(entry: dict[str, object]) -> None:
    try:
        body = orjson.dumps({"inputs": [entry]})
    except orjson.JSONEncodeError:
        return
    with contextlib.suppress(InvalidRequest):
        decode_request(body, None)


def test_binary_tensors_are_not_copied() -> None:
    body = encode_request([numeric_tensor("x", np.arange(6, dtype=np.float32))])
    (tensor,) = decode_request(body.content, dict(body.headers)[LENGTH_HEADER]).inputs
    assert tensor.data.base is not None


def test_outputs_are_binary_only_if_requested() -> None:
    document = {
        "inputs": [{"name": "x", "datatype": "INT32", "shape": [1], "data": [1]}],
        "outputs": [{"name": "a", "parameters": {"binary_data": True}}, {"name": "b"}],
    }
    request = decode_request(orjson.dumps(document), None)
    outputs = [numeric_tensor(name, np.ones(2, dtype=np.float32)) for name in ("a", "b")]
    body = encode_response(outputs, model_name="m", request=request)
    head = orjson.loads(body.content[: int(dict(body.headers)[LENGTH_HEADER])])
    assert head["outputs"][0]["parameters"] == {"binary_data_size": 8}
    assert head["outputs"][1]["data"] == [1.0, 1.0]


def test_refuses_fp16_in_json() -> None:
    document = {"inputs": [{"name": "x", "datatype": "FP16", "shape": [1], "data": [1.0]}]}
    with pytest.raises(InvalidRequest, match="FP16 can only be sent in binary"):
        decode_request(orjson.dumps(document), None)


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        pytest.param(b"\x01", "inside a length", id="length"),
        pytest.param(struct.pack("<I", 9) + b"abc", "inside a string of 9", id="string"),
        pytest.param(b"", "needs 1 strings, got 0", id="count"),
    ],
)
def test_refuses_malformed_strings(tail: bytes, message: str) -> None:
    head = orjson.dumps(
        {
            "inputs": [
                {
                    "name": "x",
                    "datatype": "BYTES",
                    "shape": [1],
                    "parameters": {"binary_data_size": len(tail)},
                }
            ]
        }
    )
    with pytest.raises(InvalidRequest, match=message):
        decode_request(head + tail, str(len(head)))


@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        pytest.param("INT8", [300], id="overflow"),
        pytest.param("INT32", [1.5], id="fraction"),
        pytest.param("INT32", [True], id="boolean"),
        pytest.param("BOOL", [1], id="number-as-boolean"),
        pytest.param("FP32", ["1"], id="text"),
        pytest.param("UINT8", [-1], id="negative"),
        pytest.param("FP32", [[1], 2], id="ragged"),
    ],
)
def test_values_must_fit_their_datatype(datatype: str, data: list[object]) -> None:
    shape = [len(data)]
    entry = {"name": "x", "datatype": datatype, "shape": shape, "data": data}
    with pytest.raises(InvalidRequest):
        decode_request(orjson.dumps({"inputs": [entry]}), None)


def request_of(**document: object) -> V2Request:
    tensor = {"name": "x", "datatype": "INT32", "shape": [1], "data": [1]}
    return decode_request(orjson.dumps({"inputs": [tensor], **document}), None)


def entries_of(request: V2Request, *tensors: Tensor) -> list[dict[str, object]]:
    body = encode_response(tensors, model_name="m", request=request)
    length = int(dict(body.headers).get(LENGTH_HEADER, len(body.content)))
    entries: list[dict[str, object]] = orjson.loads(body.content[:length])["outputs"]
    return entries


def test_sends_requested_outputs_in_their_order() -> None:
    tensors = [numeric_tensor(name, np.ones(1, dtype=np.float32)) for name in "abc"]
    entries = entries_of(request_of(outputs=[{"name": "c"}, {"name": "a"}]), *tensors)
    assert [entry["name"] for entry in entries] == ["c", "a"]


def test_output_parameter_overrides_the_requests() -> None:
    request = request_of(
        parameters={"binary_data_output": True},
        outputs=[{"name": "a", "parameters": {"binary_data": False}}, {"name": "b"}],
    )
    tensors = [numeric_tensor(name, np.ones(1, dtype=np.float32)) for name in "ab"]
    first, second = entries_of(request, *tensors)
    assert first["data"] == [1.0]
    assert second["parameters"] == {"binary_data_size": 4}


@pytest.mark.parametrize(
    ("tensor", "size"),
    [
        pytest.param(numeric_tensor("x", np.ones(3, dtype=np.float16)), 6, id="half"),
        pytest.param(Tensor("x", "BF16", np.ones(3, dtype=np.float32)), 6, id="brain-half"),
        pytest.param(bytes_tensor("x", [b"\xff\xfe"]), 6, id="not-utf-8"),
    ],
)
def test_sends_in_binary_what_json_cannot_hold(tensor: Tensor, size: int) -> None:
    (entry,) = entries_of(V2Request(()), tensor)
    assert entry["parameters"] == {"binary_data_size": size}
    assert "data" not in entry


@given(st.lists(st.floats(width=32), min_size=1))
def test_bf16_rounds_to_the_upper_half_of_float32(values: list[float]) -> None:
    data = np.array(values, dtype=np.float32)
    expected = torch.from_numpy(data).to(torch.bfloat16)
    raw = to_raw(Tensor("x", "BF16", data))
    with np.errstate(all="ignore"):
        read = from_raw(memoryview(raw), parse_tensor_spec("x", "BF16", [len(values)], "inputs[0]"))
    np.testing.assert_array_equal(read.data, expected.float().numpy())
    assert read.datatype == "BF16"


@given(st.binary(max_size=8))
def test_booleans_are_bytes_of_0_or_1(content: bytes) -> None:
    about = parse_tensor_spec("x", "BOOL", [len(content)], "inputs[0]")
    if set(content) <= {0, 1}:
        assert from_raw(memoryview(content), about).data.tolist() == [b == 1 for b in content]
    else:
        with pytest.raises(InvalidRequest, match="bytes of 0 or 1"):
            from_raw(memoryview(content), about)


def test_refuses_a_tensor_with_json_and_binary_data() -> None:
    tensor = {
        "name": "x",
        "datatype": "INT8",
        "shape": [1],
        "data": [1],
        "parameters": {"binary_data_size": 1},
    }
    head = orjson.dumps({"inputs": [tensor]})
    with pytest.raises(InvalidRequest, match="exclude each other"):
        decode_request(head + b"\x01", str(len(head)))


def test_refuses_numbers_outside_their_datatype() -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1e300]}
    with pytest.raises(InvalidRequest, match="does not fit FP32"):
        decode_request(orjson.dumps({"inputs": [tensor]}), None)


@pytest.mark.parametrize(
    "data", [[1, 2, 3, 4, 5, 6], [[1, 2, 3], [4, 5, 6]]], ids=["flat", "nested"]
)
def test_accepts_flat_and_nested_data(data: list[object]) -> None:
    tensor = {"name": "x", "datatype": "INT8", "shape": [2, 3], "data": data}
    (read,) = decode_request(orjson.dumps({"inputs": [tensor]}), None).inputs
    assert read.data.tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(
            [[1, 2], [3, 4], [5, 6]], r"nested as \[3, 2\], shape is \[2, 3\]", id="turned"
        ),
        pytest.param([[1, 2, 3, 4], [5, 6]], "different lengths", id="ragged"),
        pytest.param([[[1, 2, 3], [4, 5, 6]]], r"nested as \[1, 2, 3\]", id="too-deep"),
        pytest.param([[1, 2, 3], 4, 5, 6], "mixes arrays and values", id="mixed"),
    ],
)
def test_refuses_data_nested_unlike_its_shape(data: list[object], message: str) -> None:
    tensor = {"name": "x", "datatype": "INT8", "shape": [2, 3], "data": data}
    with pytest.raises(InvalidRequest, match=message):
        decode_request(orjson.dumps({"inputs": [tensor]}), None)


def _json_input(datatype: str, shape: list[int], data: object) -> Tensor:
    entry = {"name": "x", "datatype": datatype, "shape": shape, "data": data}
    (tensor,) = decode_request(orjson.dumps({"inputs": [entry]}), None).inputs
    return tensor


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
@pytest.mark.parametrize("data", [[None, 1, None, 2.5], [[None, 1], [None, 2.5]]])
def test_null_is_a_missing_number(datatype: str, data: object) -> None:
    found = _json_input(datatype, [2, 2], data).data
    np.testing.assert_equal(found, [[np.nan, 1.0], [np.nan, 2.5]])


@pytest.mark.parametrize("datatype", ["INT32", "UINT8", "INT64", "BOOL", "BYTES"])
def test_null_is_a_missing_number_of_floats_only(datatype: str) -> None:
    with pytest.raises(InvalidRequest):
        _json_input(datatype, [1], [None])


def test_numbers_too_large_beside_null_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"does not fit FP32.*1e\+300"):
        _json_input("FP32", [2], [None, 1e300])


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        pytest.param([0, 3], [], id="flat"),
        pytest.param([2, 0], [[], []], id="nested"),
        pytest.param([2, 0, 3], [[], []], id="nested, as numpy writes it"),
    ],
)
def test_a_size_may_be_zero(shape: list[int], data: object) -> None:
    assert _json_input("FP32", shape, data).shape == tuple(shape)


def test_bytes_that_are_no_text_are_base64_in_v1() -> None:
    values = np.asarray([[b"a", b"\xff"]], dtype=object)
    assert v1_values(Tensor("x", "BYTES", values)) == [["a", {"b64": "/w=="}]]


def test_bytes_that_are_no_text_are_no_text() -> None:
    values = np.asarray([b"ab", b"a\xff"], dtype=object)
    with pytest.raises(InvalidRequest, match="'x' must hold UTF-8, but byte 1 of one is not"):
        plain_values(Tensor("x", "BYTES", values))
