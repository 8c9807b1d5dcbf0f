"""Tensors in, tensors out: the task of models that have a signature, in V1 and V2.

Such are exported programs, on a device of torch, and ONNX models.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import (
    BF16,
    BYTES,
    NUMPY_OF,
    Tensor,
    check_item_count,
    plain_values,
    v1_values,
)
from common.shown_value import shown
from registry.domain.model import Task
from runtime.device.device_errors import is_device_error, is_out_of_memory
from runtime.device.device_tensor import from_device, values_on
from runtime.engines.libraries.onnx_engine import OnnxModel, onnx_signature
from runtime.engines.libraries.rows import output_tensor
from runtime.engines.program import (
    ANY,
    MAX_SIZE,
    Port,
    Program,
    Signature,
    Size,
    describe_shape,
    read_document,
    read_signature,
)
from runtime.errors import InferenceFailed, InferenceTooLarge, ModelInvalid
from runtime.tasks.task import Batching, Processor, nested_tensor
from runtime.weights.safetensors_files import DATATYPE_OF

logger = logging.getLogger(__name__)


POSITION_PREFIX = "INPUT__"
"""Triton's clients name the inputs of a program by their positions: INPUT__0 and so on."""
EXAMPLE_SIZE = 4
"""Size of dynamic dimensions other than the batch, in generated inputs."""


class ProgramBatching(Batching):
    """Requests are concatenated along the first dimension, if all inputs and outputs share it.

    Only if a check found that rows are independent (`TensorTask.warm_up`): no program declares it.
    """

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


TOLERANCE = {"FP16": 1e-2, BF16: 5e-2}
DEFAULT_TOLERANCE = 1e-4
"""Allowed difference of a row's outputs alone and in a batch, relative to the largest value."""
REFUSAL_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, ArithmeticError, AssertionError)
"""What torch raises for tensors whose sizes or values a program does not accept."""
MAX_OUTPUT_BYTES = 2 * 1024**3


class TensorTask(Processor):
    """Its inputs and outputs are the request's tensors, with the names of the signature."""

    batching: ProgramBatching

    def __init__(self, signature: Signature, *, allows_nan: bool = False) -> None:
        self._signature = signature
        self.batching = ProgramBatching(signature, allows_nan=allows_nan)

    @property
    def is_quick(self) -> bool:
        return True

    # V1 and V2

    def read_instances(self, instances: Sequence[Any]) -> Sequence[Tensor]:
        """One list per row, or one object per row with every input by name."""
        check_item_count(len(instances))
        if all(isinstance(instance, dict) for instance in instances):
            return self._tensors_of_objects(instances)
        ports = self._signature.inputs
        if len(ports) > 1:
            raise InvalidRequest(
                f"each instance must be an object with {[port.name for port in ports]}"
            )
        return [nested_tensor(ports[0].name, ports[0].datatype, list(instances))]

    def _tensors_of_objects(self, instances: Sequence[dict[str, Any]]) -> list[Tensor]:
        names = [port.name for port in self._signature.inputs]
        for index, instance in enumerate(instances):
            if sorted(instance) != sorted(names):
                raise InvalidRequest(
                    f"instances[{index}] must be an object with {names}, had {sorted(instance)[:8]}"
                )
        if self._signature.batch_size is None and len(instances) > 1:
            raise InvalidRequest("the program takes one instance at a time: its sizes are fixed")
        tensors = []
        for port in self._signature.inputs:
            rows = [instance[port.name] for instance in instances]
            data = rows if self._signature.batch_size is not None else rows[0]
            tensors.append(nested_tensor(port.name, port.datatype, data))
        return tensors

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        """One value or object per row, or per request if there is no batch dimension."""
        if len(outputs) == 1:
            values = v1_values(outputs[0])
            return list(values) if self._signature.batch_size is not None else [values]
        named = {tensor.name: v1_values(tensor) for tensor in outputs}
        if self._signature.batch_size is None:
            return [named]
        return [dict(zip(named, row, strict=True)) for row in zip(*named.values(), strict=True)]

    # The device

    def warm_up(self, network: Any) -> None:
        """Infer with random values, and check whether rows are independent.

        A model that refuses random values is served without batching. Raises ModelInvalid if one
        row needs more memory than an inference may take.
        """
        try:
            network.are_rows_independent = self._are_rows_independent(network)
        except InferenceTooLarge as error:
            raise ModelInvalid(f"the model cannot infer one row: {error}") from error
        except InvalidRequest as error:
            logger.info(
                "program refused random inputs, its requests are not batched",
                extra={"error": error},
            )

    def _are_rows_independent(self, network: Any) -> bool:
        rng = np.random.default_rng(0)
        first = self.batching.random_example(1, rng)
        alone = self.infer(network, first)
        if self._signature.batch_size is None:
            return False
        second = self.batching.random_example(1, rng)
        counts = [self.batching.rows_of(first), self.batching.rows_of(second)]
        if sum(counts) > (self.batching.max_rows or sum(counts)):
            return False
        expected = [alone, self.infer(network, second)]
        together = self.infer(network, self.batching.join([first, second]))
        try:
            parts = self.batching.split(together, counts)
        except ValueError:
            return False
        return all(
            _is_close(one, other)
            for part, each in zip(parts, expected, strict=True)
            for one, other in zip(part, each, strict=True)
        )

    def input_types(self) -> list[dict[str, Any]]:
        return [port.metadata() for port in self._signature.inputs]

    def output_types(self) -> list[dict[str, Any]]:
        return [port.metadata() for port in self._signature.outputs]


def _is_close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if one.data.dtype.kind != "f":
        return bool(np.array_equal(one.data, other.data))
    finite = np.abs(other.data[np.isfinite(other.data)])
    bound = TOLERANCE.get(one.datatype, DEFAULT_TOLERANCE) * float(finite.max(initial=1e-6))
    return bool(np.allclose(one.data, other.data, rtol=0, atol=bound, equal_nan=True))


class TensorProgram(TensorTask):
    """The task of an exported program: its inputs and outputs are the request's tensors."""

    platform = "torch.export"

    def __init__(self, path: Path, declared: Task | None) -> None:
        """Read the signature of the archive at `path`; raises ModelInvalid."""
        if declared is not None:
            raise ModelInvalid(
                "the model is an exported program, which has no task, but task"
                f" {declared.value!r} is declared: remove the annotation pilotlight.io/task"
            )
        super().__init__(read_signature(read_document(path)))

    def infer(self, network: Program, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run the program; raises InvalidRequest for tensors that it does not accept."""
        ports = zip(self._signature.inputs, inputs, strict=True)
        arguments = {port.graph_name: values_on(network.device, tensor) for port, tensor in ports}
        try:
            values = network(arguments)
        except REFUSAL_ERRORS as error:
            if is_out_of_memory(error) or is_device_error(error):
                raise  # not caused by the tensors
            raise InvalidRequest(f"the program refused these tensors: {error}") from error
        outputs = zip(self._signature.outputs, values, strict=True)
        return tuple(_output(port.name, value) for port, value in outputs)


def _output(name: str, value: torch.Tensor) -> Tensor:
    if value.numel() * value.element_size() > MAX_OUTPUT_BYTES:
        raise InferenceFailed(
            f"output {name!r} has shape {list(value.shape)}; the limit is {MAX_OUTPUT_BYTES} bytes"
        )
    if value.dtype not in DATATYPE_OF:
        raise InferenceFailed(
            f"output {name!r} has type {value.dtype}, which the protocol does not support"
        )
    return from_device(name, DATATYPE_OF[value.dtype], value)


class OnnxTask(TensorTask):
    platform = "onnx"

    def __init__(self, path: Path, declared: Task | None) -> None:
        """Read the signature of the file at `path`; raises ModelInvalid."""
        if declared is not None:
            raise ModelInvalid(
                f"an ONNX model has no task, but task {declared.value!r} is declared: remove the"
                " annotation pilotlight.io/task"
            )
        super().__init__(onnx_signature(path), allows_nan=True)

    def infer(self, network: OnnxModel, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        arrays = {tensor.name: plain_values(tensor) for tensor in inputs}
        names = [port.name for port in self._signature.outputs]
        values = network(arrays, names)
        return tuple(output_tensor(value, name) for name, value in zip(names, values, strict=True))
