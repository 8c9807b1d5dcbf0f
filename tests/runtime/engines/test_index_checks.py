"""Indices of a program are checked before a GPU uses them, where they would end the pod."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._ops import OpOverload

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import numeric_tensor
from runtime.engines.program_graph import CHECKS, with_index_checks
from runtime.tasks.tensor_task import TensorProgram
from tests.runtime.networks import load_network

aten = torch.ops.aten
TABLE = torch.arange(12.0).reshape(4, 3)
ROWS = torch.ones(2, 3)


def at(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def places(value: int) -> torch.Tensor:
    return torch.tensor([[0, 1, value]])


CASES: dict[str, tuple[OpOverload, Callable[[int], tuple[Any, ...]]]] = {
    "embedding": (aten.embedding.default, lambda at_: (TABLE, at(0, at_))),
    "index": (aten.index.Tensor, lambda at_: (TABLE, [at(0, at_)])),
    "index_put": (aten.index_put_.default, lambda at_: (TABLE.clone(), [at(0, at_)], ROWS)),
    "take": (aten.take.default, lambda at_: (TABLE[:, 0], at(0, at_))),
    "put": (aten.put.default, lambda at_: (TABLE[:, 0], at(0, at_), torch.ones(2))),
    "index_fill": (aten.index_fill.int_Scalar, lambda at_: (TABLE, 0, at(0, at_), 7.0)),
    "index_select": (aten.index_select.default, lambda at_: (TABLE, 0, at(0, at_))),
    "index_add": (aten.index_add.default, lambda at_: (TABLE, 0, at(0, at_), ROWS)),
    "index_copy": (aten.index_copy.default, lambda at_: (TABLE, 0, at(0, at_), ROWS)),
    "index_reduce": (
        aten.index_reduce_.default,
        lambda at_: (TABLE.clone(), 0, at(0, at_), ROWS, "amax"),
    ),
    "gather": (aten.gather.default, lambda at_: (TABLE, 0, places(at_))),
    "scatter": (aten.scatter.value, lambda at_: (TABLE, 0, places(at_), 7.0)),
    "scatter_add": (aten.scatter_add.default, lambda at_: (TABLE, 0, places(at_), ROWS)),
    "scatter_reduce": (
        aten.scatter_reduce_.two,
        lambda at_: (TABLE.clone(), 0, places(at_), ROWS, "sum"),
    ),
}
"""Each over four rows, numbered 0 to 3."""


def test_every_check_has_a_case() -> None:
    assert {*CASES, "_assert_async"} == set(CHECKS)


@pytest.mark.parametrize("name", CASES)
def test_valid_index_gives_the_operators_result(name: str) -> None:
    operator, arguments = CASES[name]
    torch.testing.assert_close(with_index_checks(operator)(*arguments(3)), operator(*arguments(3)))


@pytest.mark.parametrize("index", [4, -5, 2**40])
@pytest.mark.parametrize("name", CASES)
def test_index_out_of_bounds_does_not_reach_the_operator(name: str, index: int) -> None:
    operator, arguments = CASES[name]
    with pytest.raises(IndexError, match=f"an index must be at least .* was {index}"):
        with_index_checks(operator)(*arguments(index))


def test_masks_and_omitted_dimensions_are_not_checked() -> None:
    index = with_index_checks(aten.index.Tensor)
    mask = torch.tensor([True, False, True, False])
    torch.testing.assert_close(index(TABLE, [None, at(-1)]), TABLE[:, [2]])
    torch.testing.assert_close(index(TABLE, [mask]), TABLE[mask])
    with pytest.raises(IndexError, match="below 3"):
        index(TABLE, [None, at(3)])
    with pytest.raises(IndexError):
        index(TABLE, [at(0), at(0), at(0)])  # torch's own error for too many indices


def test_empty_index_is_valid() -> None:
    none = torch.empty(0, dtype=torch.int64)
    assert with_index_checks(aten.index_select.default)(TABLE, 0, none).shape == (0, 3)


def test_assertion_of_the_program_runs_on_the_host() -> None:
    check = with_index_checks(aten._assert_async.msg)
    check(torch.tensor(1), "rows must agree")
    with pytest.raises(AssertionError, match="rows must agree"):
        check(torch.tensor(0), "rows must agree")


def test_other_operators_are_unchanged() -> None:
    assert with_index_checks(aten.add.Tensor) is aten.add.Tensor


class Lookup(torch.nn.Module):
    """Rows of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(4, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.table(ids)
        return rows * 2


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_refuses_a_request_with_an_index_out_of_bounds(tmp_path: Path, kind: str) -> None:
    archive = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(Lookup().eval(), (torch.tensor([1, 2]),)), archive)
    network = load_network(tmp_path, device=torch.device(kind))
    network.device = torch.device("cpu")  # built for a GPU, run on a CPU
    task = TensorProgram(archive, None)

    def run(ids: list[int]) -> np.ndarray[Any, Any]:
        inputs = (numeric_tensor("ids", np.array(ids)),)
        return task.infer(network, inputs)[0].data

    assert run([0, 3]).shape == (2, 3)
    with pytest.raises(InvalidRequest, match="was 4" if kind == "cuda" else "out of range"):
        run([0, 4])
