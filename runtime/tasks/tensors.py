"""Tensors in, tensors out: a program that was exported, under the names its signature has."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from runtime.device.device_errors import is_out_of_memory
from runtime.engines.programs.batching import ProgramBatching
from runtime.engines.programs.program import signature_of_program
from runtime.errors import InferenceFailed, InvalidRequest, ModelInvalid
from runtime.wire.json_tensors import from_json
from runtime.wire.tensors import BF16, DATATYPE_OF, Tensor, check_item_count, parse_tensor_spec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from registry.domain.model import Task
    from runtime.engines.programs.program import Program

logger = logging.getLogger(__name__)

REFUSALS = (
    RuntimeError, ValueError, TypeError, IndexError, ArithmeticError, AssertionError,
)  # fmt: skip
"""What torch raises for tensors whose sizes or values a program does not take."""
MOST_OUTPUT_BYTES = 2 * 1024**3
TOLERANCE = {"FP16": 1e-2, BF16: 5e-2}
FINE_TOLERANCE = 1e-4
"""How far a row may differ when it runs beside another, relative to the largest value."""


class TensorProgram:
    """A program's own tensors, unchanged."""

    def __init__(self, path: Path, declared: Task | None) -> None:
        """Read the signature of the archive at `path`; raises ModelInvalid."""
        if declared is not None:
            raise ModelInvalid(
                f"the model is an exported program and serves no task, {declared.value!r} is"
                " declared: remove the annotation pilotlight.io/task"
            )
        self._signature = signature_of_program(path)
        self.batching = ProgramBatching(self._signature)

    # V1 and V2

    def read_instances(self, instances: Sequence[Any]) -> Sequence[Tensor]:
        """One list per row, or one object per row that holds every input by name."""
        check_item_count(len(instances))
        if all(isinstance(instance, dict) for instance in instances):
            return self._of_objects(instances)
        ports = self._signature.inputs
        if len(ports) > 1:
            raise InvalidRequest(
                f"each instance must be an object with {[port.name for port in ports]}"
            )
        return [_tensor(ports[0].name, ports[0].datatype, list(instances))]

    def _of_objects(self, instances: Sequence[dict[str, Any]]) -> list[Tensor]:
        names = [port.name for port in self._signature.inputs]
        for index, instance in enumerate(instances):
            if sorted(instance) != sorted(names):
                raise InvalidRequest(
                    f"instances[{index}] must be an object with {names}, had {sorted(instance)[:8]}"
                )
        if self._signature.rows is None and len(instances) > 1:
            raise InvalidRequest("the program takes one instance at a time: its sizes are fixed")
        tensors = []
        for port in self._signature.inputs:
            rows = [instance[port.name] for instance in instances]
            data = rows if self._signature.rows is not None else rows[0]
            tensors.append(_tensor(port.name, port.datatype, data))
        return tensors

    def read_tensors(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """As they come."""
        return tensors

    def preprocess(self, items: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """As they come."""
        return tuple(items)

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """As they come."""
        return tuple(outputs)

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        """One value per row where there are rows, else one for the request; objects by name."""
        if len(outputs) == 1:
            values = outputs[0].data.tolist()
            return list(values) if self._signature.rows is not None else [values]
        named = {tensor.name: tensor.data.tolist() for tensor in outputs}
        if self._signature.rows is None:
            return [named]
        return [dict(zip(named, row, strict=True)) for row in zip(*named.values(), strict=True)]

    # The device

    def infer(self, network: Program, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run the program; raises InvalidRequest for what it does not take."""
        ports = zip(self._signature.inputs, inputs, strict=True)
        arguments = {port.given: _to_torch(tensor, network.device) for port, tensor in ports}
        try:
            values = network(arguments)
        except REFUSALS as error:
            if is_out_of_memory(error) or isinstance(error, torch.AcceleratorError):
                raise  # no fault of the tensors
            raise InvalidRequest(f"the program refused these tensors: {error}") from error
        outputs = zip(self._signature.outputs, values, strict=True)
        return tuple(_to_tensor(port.name, value) for port, value in outputs)

    def warm_up(self, network: Program) -> None:
        """An inference with made-up values, and whether rows touch each other.

        A program may refuse made-up values and serve all the same; then it runs one request at a
        time.
        """
        try:
            network.are_rows_apart = self._are_rows_apart(network)
        except InvalidRequest as error:
            logger.info("program does not take made-up inputs", extra={"error": error})

    def _are_rows_apart(self, network: Program) -> bool:
        rng = np.random.default_rng(0)
        first = self.batching.random_example(1, rng)
        alone = self.infer(network, first)
        if self._signature.rows is None:
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
        """As the program's signature says."""
        return [port.metadata() for port in self._signature.inputs]

    def output_types(self) -> list[dict[str, Any]]:
        """As the program's signature says."""
        return [port.metadata() for port in self._signature.outputs]


def _tensor(name: str, datatype: str, data: Any) -> Tensor:
    """A tensor from nested lists, whose depth and lengths are its shape."""
    shape: list[int] = []
    inner = data
    while isinstance(inner, list):
        shape.append(len(inner))
        inner = inner[0] if inner else None
    values = data if shape else [data]
    return from_json(values, parse_tensor_spec(name, datatype, shape, f"instances, input {name!r}"))


def _to_torch(tensor: Tensor, device: torch.device) -> torch.Tensor:
    array = tensor.data if tensor.data.flags.writeable else tensor.data.copy()
    value = torch.from_numpy(array)
    return value.to(device, torch.bfloat16 if tensor.datatype == BF16 else value.dtype)


def _to_tensor(name: str, value: torch.Tensor) -> Tensor:
    if value.numel() * value.element_size() > MOST_OUTPUT_BYTES:
        raise InferenceFailed(
            f"output {name!r} has shape {list(value.shape)}; {MOST_OUTPUT_BYTES} bytes may go out"
        )
    if value.dtype is torch.bfloat16:
        return Tensor(name, BF16, np.ascontiguousarray(value.float().numpy(force=True)))
    array = value.numpy(force=True)
    if array.dtype not in DATATYPE_OF:
        raise InferenceFailed(f"output {name!r} has type {value.dtype}, which the protocol lacks")
    return Tensor(name, DATATYPE_OF[array.dtype], np.ascontiguousarray(array).reshape(array.shape))


def _is_close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if one.data.dtype.kind != "f":
        return bool(np.array_equal(one.data, other.data))
    finite = np.abs(other.data[np.isfinite(other.data)])
    bound = TOLERANCE.get(one.datatype, FINE_TOLERANCE) * float(finite.max(initial=1e-6))
    return bool(np.allclose(one.data, other.data, rtol=0, atol=bound, equal_nan=True))
