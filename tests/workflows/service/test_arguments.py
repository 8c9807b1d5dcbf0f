"""Arguments against parameters, and tensors against values."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.inference_protocol import InvalidRequest
from common.inference_protocol.bodies import LENGTH_HEADER
from workflows.deployments import argument_problems
from workflows.values import StoredTensor, infer_body, plain_value, read_outputs, tensor_of

PARAMETERS = [
    {"name": "text", "type": "text", "required": True},
    {"name": "count", "type": "whole number", "required": False},
]


def test_every_problem_is_named() -> None:
    problems = argument_problems(PARAMETERS, {"count": "3", "other": 1})
    assert len(problems) == 3
    assert "'other'" in problems[0]
    assert "'text'" in problems[1]
    assert "'3'" in problems[2]


def test_good_arguments_have_no_problem() -> None:
    assert argument_problems(PARAMETERS, {"text": "a", "count": 3}) == []


_numbers = st.lists(
    st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=9
)


@given(st.one_of(_numbers, st.text(), st.integers(-(2**62), 2**62), st.booleans()))
def test_a_value_comes_back_as_it_was(value: object) -> None:
    assert plain_value(tensor_of("x", {"value": value})) == value


@given(_numbers, st.lists(st.text(max_size=20), min_size=2, max_size=5))
def test_binary_tensors_come_back(numbers: list[float], texts: list[str]) -> None:
    sent = [tensor_of("x", {"value": numbers}), tensor_of("text", {"value": texts})]
    body = infer_body(sent)
    answer = body.content.replace(b'"inputs"', b'"outputs"', 1)
    found = read_outputs(answer, str(int(dict(body.headers)[LENGTH_HEADER]) + 1))
    assert list(found.values()) == sent


@pytest.mark.parametrize(
    "argument",
    [
        pytest.param({"value": [[1], [1, 2]]}, id="ragged"),
        pytest.param({"value": []}, id="empty"),
        pytest.param({"value": {"a": 1}}, id="object"),
        pytest.param({"value": [1.0, 1e300]}, id="too-large-for-FP32"),
        pytest.param({"value": [None, "1"]}, id="text-beside-NaN"),
        pytest.param({"base64": "!"}, id="base64"),
        pytest.param({"tensor": {"datatype": "F9", "shape": [1], "data": [1]}}, id="datatype"),
    ],
)
def test_other_values_are_no_input(argument: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="'x'"):
        tensor_of("x", argument)


def test_what_is_no_number_can_be_passed_on() -> None:
    found = tensor_of("x", {"value": [1.0, None]})  # as a frame has [1.0, NaN]
    assert (found.datatype, found.shape) == ("FP32", (1, 2))
    assert plain_value(found) == pytest.approx([1.0, math.nan], nan_ok=True)


def test_a_large_whole_number_is_not_wrapped() -> None:
    assert plain_value(tensor_of("x", {"value": 2**63})) == 2**63


def test_a_response_without_outputs_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no V2 response"):
        read_outputs(b'{"inputs": []}', None)


def test_json_outputs_are_read() -> None:
    body = b'{"outputs": [{"name": "s", "datatype": "FP32", "shape": [1, 2], "data": [[1, 2]]}]}'
    found = read_outputs(body, None)["s"]
    assert isinstance(found, StoredTensor)
    assert plain_value(found) == [1.0, 2.0]


@pytest.mark.parametrize("shape", [(1 << 40, 0), (1 << 20, 1 << 20, 0)])
def test_a_tensor_without_values_is_no_way_to_fill_the_memory(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest, match="too many empty lists"):
        plain_value(StoredTensor("x", "FP32", shape, b""))
    assert plain_value(StoredTensor("x", "FP32", (0, 1 << 40), b"")) == []
