"""Tensor batching: validation, padding, splitting of outputs."""

import dataclasses

import numpy as np
import pytest

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import Tensor, bytes_tensor, numeric_tensor
from runtime.tasks.task import PaddedBatching, TensorRule

TEXT = PaddedBatching(
    {
        "input_ids": TensorRule("INT64", padding=9, upper_bound=10),
        "attention_mask": TensorRule("INT64", upper_bound=2),
    },
    required=("input_ids", "attention_mask"),
    max_tokens=8,
)
IMAGE = PaddedBatching(
    {"pixel_values": TensorRule("FP32", trailing_shape=(3, 2, 2))}, ("pixel_values",)
)


def ids(*rows: list[int]) -> Tensor:
    return numeric_tensor("input_ids", np.array(rows, dtype=np.int64))


def mask(*rows: list[int]) -> Tensor:
    return numeric_tensor("attention_mask", np.array(rows, dtype=np.int64))


def pixels(value: float = 0.0, *, rows: int = 1, dtype: type = np.float32) -> Tensor:
    return numeric_tensor("pixel_values", np.full((rows, 3, 2, 2), value, dtype=dtype))


def test_adds_the_mask_and_sorts_inputs() -> None:
    inputs = TEXT.validate([ids([1, 2])])
    assert [tensor.name for tensor in inputs] == ["input_ids", "attention_mask"]
    assert inputs[1].data.tolist() == [[1, 1]]
    assert TEXT.validate([mask([1, 1]), ids([1, 2])])[0].name == "input_ids"


@pytest.mark.parametrize(
    ("batching", "inputs", "message"),
    [
        pytest.param(IMAGE, [pixels(np.nan)], "finite numbers, held NaN", id="nan"),
        pytest.param(IMAGE, [pixels(np.inf)], "finite numbers", id="infinity"),
        pytest.param(IMAGE, [pixels(dtype=np.float64)], "must be FP32, was FP64", id="float64"),
        pytest.param(
            IMAGE,
            [numeric_tensor("pixel_values", np.zeros((1, 3, 2), np.float32))],
            "rows, 3, 2, 2], was [1, 3, 2]",
            id="image-shape",
        ),
        pytest.param(IMAGE, [pixels(rows=0)], "must have shape", id="no-rows"),
        pytest.param(TEXT, [], "inference needs", id="nothing"),
        pytest.param(TEXT, [bytes_tensor("text", [b"x"])], "inference needs", id="bytes"),
        pytest.param(TEXT, [mask([1])], "needs a tensor 'input_ids'", id="mask-alone"),
        pytest.param(TEXT, [ids([1]), ids([1])], "have one name", id="twice"),
        pytest.param(TEXT, [ids([1]), pixels()], "got 'pixel_values'", id="unknown"),
        pytest.param(TEXT, [ids([10])], "must hold 0 to 9, held 10 to 10", id="too-high"),
        pytest.param(TEXT, [ids([-1, 3])], "held -1 to 3", id="negative"),
        pytest.param(TEXT, [ids([1] * 9)], "1 to 8 tokens], was [1, 9]", id="too-long"),
        pytest.param(TEXT, [ids([])], "must have shape", id="no-tokens"),
        pytest.param(TEXT, [ids([1, 2]), mask([1])], "must have one shape", id="two-shapes"),
        pytest.param(TEXT, [ids([1]), mask([2])], "must hold 0 to 1", id="mask-values"),
        pytest.param(
            TEXT,
            [numeric_tensor("input_ids", np.ones((1, 1), np.int32))],
            "must be INT64, was INT32",
            id="int32",
        ),
    ],
)
def test_refuses_inputs_that_no_batch_can_hold(
    batching: PaddedBatching, inputs: list[Tensor], message: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        batching.validate(inputs)
    assert message in str(refused.value)


@pytest.mark.parametrize("pads_left", [False, True])
def test_shorter_requests_are_padded(pads_left: bool) -> None:
    batching = dataclasses.replace(TEXT, pads_left=pads_left)
    one, two = batching.validate([ids([1, 2, 3])]), batching.validate([ids([4], [5])])
    tokens, attention = batching.join([one, two])
    padded = [[9, 9, 4], [9, 9, 5]] if pads_left else [[4, 9, 9], [5, 9, 9]]
    assert tokens.data.tolist() == [[1, 2, 3], *padded]
    marks = [0, 0, 1] if pads_left else [1, 0, 0]
    assert attention.data.tolist() == [[1, 1, 1], marks, marks]
    assert tokens.data.dtype == np.int64


def test_images_are_stacked() -> None:
    (joined,) = IMAGE.join([(pixels(1.0),), (pixels(2.0, rows=2),)])
    assert joined.shape == (3, 3, 2, 2)
    assert joined.data[:, 0, 0, 0].tolist() == [1.0, 2.0, 2.0]


def test_only_texts_have_tokens_per_row() -> None:
    assert TEXT.tokens_per_row((ids([1, 2, 3]),)) == 3
    assert IMAGE.tokens_per_row((pixels(),)) == 1
    assert TEXT.batch_key((ids([1]), mask([1])), None) != TEXT.batch_key((ids([1]),), None)


def test_splits_outputs_by_rows() -> None:
    output = numeric_tensor("pooled", np.arange(6, dtype=np.float32).reshape(3, 2))
    first, second = TEXT.split([output], [1, 2])
    assert first[0].data.tolist() == [[0, 1]]
    assert second[0].data.tolist() == [[2, 3], [4, 5]]


def test_refuses_outputs_with_other_rows() -> None:
    output = numeric_tensor("pooled", np.zeros((3, 2), np.float32))
    with pytest.raises(ValueError, match="for 2 rows"):
        TEXT.split([output], [1, 1])


def test_cuts_columns_after_the_longest_row() -> None:
    batching = dataclasses.replace(TEXT, eos_ids=frozenset({1}))
    tokens = np.array(
        [[0, 5, 1, 0, 0], [0, 6, 7, 1, 0], [0, 5, 6, 7, 8], [1, 5, 1, 0, 0]], dtype=np.int64
    )
    parts = batching.split([numeric_tensor("output_ids", tokens)], [1, 1, 1, 1])
    assert [part[0].data.tolist() for part in parts] == [
        [[0, 5, 1]],
        [[0, 6, 7, 1]],
        [[0, 5, 6, 7, 8]],
        [[1, 5, 1]],
    ]
    two = batching.split([numeric_tensor("output_ids", tokens[:2])], [2])
    assert two[0][0].shape == (2, 4)


@pytest.mark.parametrize("batching", [TEXT, IMAGE])
def test_examples_are_valid_inputs(batching: PaddedBatching) -> None:
    inputs = batching.example(3, 5)
    assert [tensor.name for tensor in batching.validate(inputs)] == list(batching.rules)
    assert all(len(tensor.data) == 3 for tensor in inputs)
