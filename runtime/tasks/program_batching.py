"""Validation and batching of a program's tensors.

Requests are concatenated along the first dimension, if all inputs and outputs share it, and only if
a check found that rows are independent (`TensorTask.warm_up`): no program declares it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from common.inference_protocol.errors import InvalidRequest
from common.inference_protocol.tensors import BF16, BYTES, NUMPY_OF, Tensor
from common.shown_value import shown
from runtime.engines.programs.signature import ANY, MAX_SIZE, Port, Signature, Size, describe_shape
from runtime.tasks.tensor_batching import Batching

if TYPE_CHECKING:
    import numpy.typing as npt

POSITION_PREFIX = "INPUT__"
"""Triton's clients name the inputs of a program by their positions: INPUT__0 and so on."""
EXAMPLE_SIZE = 4
"""Size of dynamic dimensions other than the batch, in generated inputs."""


class ProgramBatching(Batching):
    def __init__(self, signature: Signature, *, allows_nan: bool = False) -> None:
        self._signature = signature
        self._allows_nan = allows_nan
        self._batch_size = signature.batch_size
        high = signature.range_of(self._batch_size)[1] if self._batch_size else 1
        self.max_rows = None if high >= MAX_SIZE else high

    def validate(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The inputs in the program's order and with its names; raises InvalidRequest."""
        ports = self._signature.inputs
        positions = {f"{POSITION_PREFIX}{index}": port.name for index, port in enumerate(ports)}
        named = {}
        for tensor in inputs:
            is_own_name = any(port.name == tensor.name for port in ports)
            name = tensor.name if is_own_name else positions.get(tensor.name, tensor.name)
            named[name] = tensor
        names = [port.name for port in ports]
        if len(named) < len(inputs) or sorted(named) != sorted(names):
            raise InvalidRequest(
                f"the program takes inputs named {names},"
                f" got {shown(sorted(tensor.name for tensor in inputs))}"
            )
        sizes: dict[str, int] = {}
        for port in ports:
            self._check(port, named[port.name], sizes)
        return tuple(named[name].renamed(name) for name in names)

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
        if not self._allows_nan and not tensor.is_finite():
            raise InvalidRequest(
                f"input {port.name!r} must hold finite numbers, held NaN or infinity"
            )

    def _fits(self, size: Size, seen: int) -> bool:
        if isinstance(size, int):
            return seen == size
        low, high = self._signature.range_of(size)
        return low <= seen <= high

    def rows_of(self, inputs: Sequence[Tensor]) -> int:
        """The common first size; 1 without a batch dimension, or without rows."""
        return (inputs[0].shape[0] or 1) if self._batch_size else 1

    def batch_key(self, inputs: Sequence[Tensor], network: Any) -> Hashable:
        """The sizes other than the first; None unless rows are known to be independent.

        A request without rows runs alone: it has nothing to join.
        """
        if self._batch_size is None or not network.are_rows_independent or not inputs[0].shape[0]:
            return None
        return tuple((tensor.name, tensor.shape[1:]) for tensor in inputs)

    def example(self, rows: int, tokens: int) -> tuple[Tensor, ...]:
        return tuple(
            Tensor(
                port.name, port.datatype, _example(self.example_shape(port, rows), port.datatype)
            )
            for port in self._signature.inputs
        )

    def random_example(self, rows: int, rng: np.random.Generator) -> tuple[Tensor, ...]:
        """Normally distributed numbers; integers are 0 or 1, valid indices in most programs."""
        tensors = []
        for tensor in self.example(rows, 0):
            dtype, shape = tensor.data.dtype, tensor.shape
            if tensor.datatype == BYTES:
                tensors.append(tensor)
                continue
            values = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
            tensors.append(Tensor(tensor.name, tensor.datatype, np.asarray(values, dtype)))
        return tuple(tensors)

    def example_shape(self, port: Port, rows: int) -> tuple[int, ...]:
        """A shape that the signature allows for an input."""
        return tuple(self._example_size(size, rows) for size in port.shape)

    def _example_size(self, size: Size, rows: int) -> int:
        if isinstance(size, int):
            return size
        low, high = self._signature.range_of(size)
        return min(max(rows if size == self._batch_size else EXAMPLE_SIZE, low), high)


def _example(shape: tuple[int, ...], datatype: str) -> npt.NDArray[Any]:
    """Zeros, or empty strings."""
    if datatype == BYTES:
        return np.full(shape, b"", dtype=object)
    return np.zeros(shape, np.float32 if datatype == BF16 else NUMPY_OF[datatype])
