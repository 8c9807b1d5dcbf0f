"""Bodies of V1, V2 and binary V2 requests as rows of numbers."""

from typing import Any

import numpy as np
import orjson
import pytest

from registry.domain.application import InputTensor
from variants.look_process import MismatchedBody, UnreadableBody, read_rows

TWO = (InputTensor("a", "FP32", (-1, 2)),)


def _read(document: object, binary: bytes = b"", names: tuple[str, ...] = ("a",)) -> Any:
    text = orjson.dumps(document)
    return read_rows(text + binary, str(len(text)) if binary else None, names, TWO, "label")


def _v2(data: object, shape: list[int], **more: object) -> dict[str, object]:
    return {"inputs": [{"name": "a", "datatype": "FP32", "shape": shape, "data": data}], **more}


def test_v2_json_flat_or_nested_and_v1_rows_or_objects_are_the_same_rows() -> None:
    expected = np.array([[1, 2], [3, 4]], np.float32)
    for document in (
        _v2([1, 2, 3, 4], [2, 2]),
        _v2([[1, 2], [3, 4]], [2, 2]),
        {"instances": [[1, 2], [3, 4]]},
        {"instances": [{"a": [1, 2]}, {"a": [3, 4]}]},
    ):
        np.testing.assert_array_equal(_read(document).rows, expected)


def test_binary_tensors_follow_the_json_part_in_order() -> None:
    first, second = np.array([[7.0]], "<f8"), np.array([[1, 2]], "<f4")
    document = {
        "inputs": [
            {
                "name": "b",
                "datatype": "FP64",
                "shape": [1, 1],
                "parameters": {"binary_data_size": 8},
            },
            {
                "name": "a",
                "datatype": "FP32",
                "shape": [1, 2],
                "parameters": {"binary_data_size": 8},
            },
        ]
    }
    read = _read(document, first.tobytes() + second.tobytes(), ("a", "b"))
    np.testing.assert_array_equal(read.rows, [[1, 2, 7]])


@pytest.mark.parametrize(
    ("more", "is_answerable"),
    [
        pytest.param({}, True, id="all outputs"),
        pytest.param({"outputs": [{"name": "label"}]}, True, id="its output"),
        pytest.param({"outputs": [{"name": "scores"}]}, False, id="another output"),
        pytest.param({"parameters": {"binary_data_output": True}}, False, id="binary"),
        pytest.param(
            {"outputs": [{"name": "label", "parameters": {"binary_data": True}}]},
            False,
            id="its output, binary",
        ),
    ],
)
def test_a_short_circuit_answers_only_what_it_can(
    more: dict[str, object], is_answerable: bool
) -> None:
    read = _read(_v2([1, 2], [1, 2], id="x", **more))
    assert (read.is_v2, read.request_id, read.is_answerable) == (True, "x", is_answerable)


@pytest.mark.parametrize(
    ("document", "text"),
    [
        pytest.param({"inputs": []}, "input 'a' is missing; the request has none", id="none"),
        pytest.param(_v2([1, 2, 3], [1, 3]), r"shape \[-1, 2\], was \[1, 3\]", id="shape"),
        pytest.param(
            {"inputs": [{"name": "b", "datatype": "FP32", "shape": [1], "data": [1]}]},
            "'a' is missing; the request has 'b'",
            id="other tensor",
        ),
    ],
)
def test_what_no_variant_can_answer_is_named(document: dict[str, Any], text: str) -> None:
    with pytest.raises(MismatchedBody, match=text):
        _read(document)


def test_not_finite_numbers_of_binary_tensors_are_named_by_row() -> None:
    values = np.array([[1, 2], [np.nan, 4], [5, np.inf]], "<f4")
    tensor = {
        "name": "a",
        "datatype": "FP32",
        "shape": [3, 2],
        "parameters": {"binary_data_size": 24},
    }
    with pytest.raises(MismatchedBody, match="input 'a' must be finite, was not in row 1"):
        _read({"inputs": [tensor]}, values.tobytes())


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"text": "x"},
        {"instances": [["a", "b"]]},
        {"instances": []},
        _v2([1, 2, 3], [2, 2]),
        _v2(None, [1, 2]),
        {"inputs": [3]},
        {"inputs": [{"name": "a", "datatype": "BYTES", "shape": [1], "data": ["x"]}]},
        _v2([0.0] * 400, [200, 2]),
    ],
)
def test_bodies_of_other_kinds_are_left_to_the_pods(document: object) -> None:
    with pytest.raises(UnreadableBody):
        _read(document)


def test_truncated_json_is_left_to_the_pods() -> None:
    with pytest.raises(UnreadableBody):
        read_rows(b'{"inputs": [', None, ("a",), TWO, "label")
