"""The task of a model that a model server runs: tensors pass through, the server checks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import BYTES, Tensor, check_item_count
from runtime.engines.server_engine import ModelServer
from runtime.tasks.task import Batching, Processor, nested_tensor

DEFAULT_INPUT: Final = "input-0"


class ServerBatching(Batching):
    """Each request alone: the server batches, if it does."""

    def validate(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(inputs)

    def example(self, rows: int, tokens: int) -> tuple[Tensor, ...]:
        raise InvalidRequest("a model of a model server cannot be profiled: the server batches")

    def rows_of(self, inputs: Sequence[Tensor]) -> int:
        return 1


class ServerTask(Processor):
    """Its inputs and outputs are as the server told when it loaded the model; none before that."""

    def __init__(self, server: ModelServer, key: str) -> None:
        self._server = server
        self._key = key
        self.batching = ServerBatching()

    @property
    def platform(self) -> str:
        signature = self._server.signature(self._key)
        name = self._server.info.name if self._server.info else ""
        return (signature.platform if signature else "") or name

    def input_types(self) -> list[dict[str, Any]]:
        signature = self._server.signature(self._key)
        return [_entry(each) for each in signature.inputs] if signature else []

    def output_types(self) -> list[dict[str, Any]]:
        signature = self._server.signature(self._key)
        return [_entry(each) for each in signature.outputs] if signature else []

    # V1 and V2

    def read_instances(self, instances: Sequence[Any]) -> Sequence[Tensor]:
        """A list per row as the only input, or an object per row with every input by name."""
        check_item_count(len(instances))
        known = {str(each["name"]): each for each in self.input_types()}
        if any(isinstance(each, dict) for each in instances):
            names = list(known) or sorted(instances[0]) if isinstance(instances[0], dict) else []
            for index, each in enumerate(instances):
                if not isinstance(each, dict) or sorted(each) != sorted(names):
                    raise InvalidRequest(f"instances[{index}] must be an object with {names}")
            columns = {name: [each[name] for each in instances] for name in names}
        elif len(known) > 1:
            raise InvalidRequest(f"each instance must be an object with {list(known)}")
        else:
            columns = {next(iter(known), DEFAULT_INPUT): list(instances)}
        return [
            nested_tensor(name, known.get(name, {}).get("datatype") or _datatype(values), values)
            for name, values in columns.items()
        ]

    def infer(self, network: Any, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        raise NotImplementedError("the model server infers")

    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        """A value per row, or an object per row where there are several outputs."""
        named = {tensor.name: _values(tensor) for tensor in outputs}
        if len(named) == 1:
            return next(iter(named.values()))
        if len({len(values) for values in named.values()}) == 1:
            return [dict(zip(named, row, strict=True)) for row in zip(*named.values(), strict=True)]
        return [named]

    def warm_up(self, network: Any) -> None:
        """Nothing: the server has said that the model is ready."""


def _entry(stored: Mapping[str, Any]) -> dict[str, Any]:
    shape = stored.get("shape")
    return {
        "name": str(stored.get("name", "")),
        "datatype": str(stored.get("datatype", "")),
        "shape": list(shape) if isinstance(shape, list) else [-1],
    }


def _datatype(values: Any) -> str:
    """The datatype of JSON values for which the server declares none."""
    pending, kinds = [values], set()
    while pending:
        each = pending.pop()
        if isinstance(each, list):
            pending += each
        else:
            kinds.add(type(each))
    if kinds <= {str}:
        return BYTES
    if kinds <= {bool}:
        return "BOOL"
    return "INT64" if kinds <= {int} else "FP64"


def _values(tensor: Tensor) -> list[Any]:
    data = np.atleast_1d(tensor.data)
    if tensor.datatype != BYTES:
        return list(data.tolist())
    texts = [value.decode(errors="replace") for value in data.ravel()]
    return list(np.array(texts, dtype=object).reshape(data.shape).tolist())
