"""What a program's tensors must be, and how those of several requests make one batch.

Requests are joined along the size that is the first of every input and output, and only where rows
were seen not to touch each other (`Program.are_rows_apart`): nothing in a program promises it.
"""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING

import numpy as np

from runtime.engines.programs.signature import ANY, MOST_SIZE, describe_shape
from runtime.errors import InvalidRequest
from runtime.wire.tensors import BF16, NUMPY_OF, Tensor

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from runtime.engines.programs.program import Program
    from runtime.engines.programs.signature import Port, Signature, Size

POSITION = "INPUT__"
"""Triton's users name the inputs of a program by their positions: INPUT__0 and so on."""
EXAMPLE_SIZE = 4
"""Of what may differ, in inputs that are made up."""


class ProgramBatching:
    """The rules of one signature."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._rows = signature.rows
        high = signature.range_of(self._rows)[1] if self._rows else 1
        self.max_tokens = 0
        self.max_rows = None if high >= MOST_SIZE else high

    def validate(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The inputs in the program's order and under its names; raises InvalidRequest."""
        ports = self._signature.inputs
        positions = {f"{POSITION}{index}": port.name for index, port in enumerate(ports)}
        named = {}
        for tensor in inputs:
            own = any(port.name == tensor.name for port in ports)
            named[tensor.name if own else positions.get(tensor.name, tensor.name)] = tensor
        wanted = [port.name for port in ports]
        if len(named) < len(inputs) or sorted(named) != sorted(wanted):
            raise InvalidRequest(
                f"the program takes inputs named {wanted},"
                f" got {reprlib.repr(sorted(tensor.name for tensor in inputs))}"
            )
        sizes: dict[str, int] = {}
        for port in ports:
            self._check(port, named[port.name], sizes)
        return tuple(Tensor(name, named[name].datatype, named[name].data) for name in wanted)

    def _check(self, port: Port, tensor: Tensor, sizes: dict[str, int]) -> None:
        if tensor.datatype != port.datatype:
            raise InvalidRequest(
                f"input {port.name!r} must be {port.datatype}, was {tensor.datatype}"
            )
        pairs = list(zip(port.shape, tensor.shape, strict=False))
        is_fitting = len(port.shape) == len(tensor.shape)
        if not is_fitting or not all(self._fits(size, seen) for size, seen in pairs):
            raise InvalidRequest(
                f"input {port.name!r} must have shape {describe_shape(port, self._signature)},"
                f" was {list(tensor.shape)}"
            )
        for size, seen in pairs:
            if isinstance(size, str) and size != ANY and sizes.setdefault(size, seen) != seen:
                raise InvalidRequest(
                    f"input {port.name!r} has shape {list(tensor.shape)}: its {seen} must be"
                    f" {sizes[size]}, as in the inputs before it"
                )
        if tensor.data.dtype.kind == "f" and not np.isfinite(tensor.data).all():
            raise InvalidRequest(
                f"input {port.name!r} must hold finite numbers, held NaN or infinity"
            )

    def _fits(self, size: Size, seen: int) -> bool:
        if isinstance(size, int):
            return seen == size
        low, high = self._signature.range_of(size)
        return low <= seen <= high

    def rows_of(self, inputs: Sequence[Tensor]) -> int:
        """The common first size; 1 where there is none."""
        return inputs[0].shape[0] if self._rows else 1

    def batch_key(self, inputs: Sequence[Tensor], network: Program) -> Hashable:
        """Requests whose other sizes agree; None while rows may touch each other."""
        if self._rows is None or not network.are_rows_apart:
            return None
        return tuple((tensor.name, tensor.shape[1:]) for tensor in inputs)

    def tokens_per_row(self, inputs: Sequence[Tensor]) -> int:
        """Nothing is padded."""
        del inputs
        return 1

    def join(self, requests: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...]:
        """Row after row."""
        if len(requests) == 1:
            return tuple(requests[0])
        return tuple(
            Tensor(
                tensor.name,
                tensor.datatype,
                np.concatenate([inputs[index].data for inputs in requests]),
            )
            for index, tensor in enumerate(requests[0])
        )

    def split(self, outputs: Sequence[Tensor], rows: Sequence[int]) -> list[tuple[Tensor, ...]]:
        """Each request's rows; raises ValueError where the program gave other ones."""
        if any(not tensor.shape or tensor.shape[0] != sum(rows) for tensor in outputs):
            seen = [list(tensor.shape) for tensor in outputs]
            raise ValueError(f"the program gave {seen} for {sum(rows)} rows")
        ends = np.cumsum(rows)
        return [
            tuple(
                Tensor(tensor.name, tensor.datatype, tensor.data[end - count : end])
                for tensor in outputs
            )
            for count, end in zip(rows, ends, strict=True)
        ]

    def example(self, rows: int, tokens: int) -> tuple[Tensor, ...]:
        """Zeros."""
        del tokens
        return tuple(
            Tensor(
                port.name,
                port.datatype,
                np.zeros(self.example_shape(port, rows), _array_type(port.datatype)),
            )
            for port in self._signature.inputs
        )

    def random_example(self, rows: int, rng: np.random.Generator) -> tuple[Tensor, ...]:
        """Numbers around 0; of whole ones 0 and 1, which most programs take for an index."""
        tensors = []
        for tensor in self.example(rows, 0):
            dtype, shape = tensor.data.dtype, tensor.shape
            values = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
            tensors.append(Tensor(tensor.name, tensor.datatype, np.asarray(values, dtype)))
        return tuple(tensors)

    def example_shape(self, port: Port, rows: int) -> tuple[int, ...]:
        """Sizes that the program takes for an input, as far as its signature says."""
        return tuple(self._example_size(size, rows) for size in port.shape)

    def _example_size(self, size: Size, rows: int) -> int:
        if isinstance(size, int):
            return size
        low, high = self._signature.range_of(size)
        return min(max(rows if size == self._rows else EXAMPLE_SIZE, low), high)


def _array_type(datatype: str) -> np.dtype[np.generic]:
    return np.dtype(np.float32) if datatype == BF16 else NUMPY_OF[datatype]
