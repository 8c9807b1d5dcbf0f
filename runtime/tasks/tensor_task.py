"""Tensors in, tensors out: the task of models that have a signature, in V1 and V2."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from runtime.device.device_tensor import on_host
from runtime.errors import InferenceTooLarge, InvalidRequest, ModelInvalid
from runtime.tasks.program_batching import ProgramBatching
from runtime.wire.json_tensors import from_json
from runtime.wire.tensors import BF16, Tensor, check_item_count, parse_tensor_spec, plain_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runtime.engines.programs.signature import Signature

logger = logging.getLogger(__name__)

TOLERANCE = {"FP16": 1e-2, BF16: 5e-2}
DEFAULT_TOLERANCE = 1e-4
"""Allowed difference of a row's outputs alone and in a batch, relative to the largest value."""
Network = TypeVar("Network")
"""What runs the model; it has a boolean `are_rows_independent`."""


class TensorTask(ABC, Generic[Network]):
    """Its inputs and outputs are the request's tensors, with the names of the signature."""

    platform: str
    waits_for_sandbox = False

    def __init__(self, signature: Signature, *, allows_nan: bool = False) -> None:
        self._signature = signature
        self.batching = ProgramBatching(signature, allows_nan=allows_nan)

    @abstractmethod
    def infer(self, network: Network, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run the model; raises InvalidRequest for tensors that it does not accept."""

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
        return [_nested_tensor(ports[0].name, ports[0].datatype, list(instances))]

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
            tensors.append(_nested_tensor(port.name, port.datatype, data))
        return tensors

    def read_tensors(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return tensors

    def preprocess(self, items: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(items)

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(outputs)

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        """One value or object per row, or per request if there is no batch dimension."""
        if len(outputs) == 1:
            values = plain_values(outputs[0]).tolist()
            return list(values) if self._signature.batch_size is not None else [values]
        named = {tensor.name: plain_values(tensor).tolist() for tensor in outputs}
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
        alone = on_host(self.infer(network, first))
        if self._signature.batch_size is None:
            return False
        second = self.batching.random_example(1, rng)
        counts = [self.batching.rows_of(first), self.batching.rows_of(second)]
        if sum(counts) > (self.batching.max_rows or sum(counts)):
            return False
        expected = [alone, on_host(self.infer(network, second))]
        together = on_host(self.infer(network, self.batching.join([first, second])))
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


def _nested_tensor(name: str, datatype: str, data: Any) -> Tensor:
    """A tensor from nested lists, whose depth and lengths give its shape."""
    shape: list[int] = []
    inner = data
    while isinstance(inner, list):
        shape.append(len(inner))
        inner = inner[0] if inner else None
    values = data if shape else [data]
    return from_json(values, parse_tensor_spec(name, datatype, shape, f"instances, input {name!r}"))


def _is_close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if one.data.dtype.kind != "f":
        return bool(np.array_equal(one.data, other.data))
    finite = np.abs(other.data[np.isfinite(other.data)])
    bound = TOLERANCE.get(one.datatype, DEFAULT_TOLERANCE) * float(finite.max(initial=1e-6))
    return bool(np.allclose(one.data, other.data, rtol=0, atol=bound, equal_nan=True))
