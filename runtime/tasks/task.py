"""The interface of all tasks: reading requests, the three stages, and writing responses.

A processor is a task with the small files of one model (tokenizer, labels). It can preprocess and
postprocess without weights, so an entry pod can serve a model whose inference runs at another pod.
Its `Batching` validates, pads and joins tensors, and splits outputs.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from common.inference_protocol import InvalidRequest
from common.inference_protocol.encodings import from_json
from common.inference_protocol.tensors import (
    BYTES,
    MAX_ITEMS,
    NUMPY_OF,
    Tensor,
    numeric_tensor,
    parse_tensor_spec,
)

if TYPE_CHECKING:
    import numpy.typing as npt
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class TensorRule:
    """Constraints of one input of a network, of shape [rows, tokens] or [rows, *trailing_shape]."""

    datatype: str
    trailing_shape: tuple[int, ...] | None = None
    """All dimensions but the first; None: tokens, padded to the longest request."""
    padding: int = 0
    upper_bound: int | None = None
    """Values are below it and not negative; None: any finite values."""
    is_option: bool = False
    """True for an optional input that changes the inference: equal values share a batch."""


class Batching(ABC):
    """How requests of one network form a batch: by default row after row. Methods may block."""

    max_tokens: int = 0
    """Longest text; 0 for networks without tokens."""
    max_rows: int | None = None
    """Limit of the items of one batch; None: no limit."""

    @abstractmethod
    def validate(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The inputs in the network's order; raises InvalidRequest."""

    @abstractmethod
    def example(self, rows: int, tokens: int) -> tuple[Tensor, ...]:
        """Valid inputs, for measurements."""

    def rows_of(self, inputs: Sequence[Tensor]) -> int:
        """Items of a request."""
        return inputs[0].shape[0]

    def batch_key(self, inputs: Sequence[Tensor], network: PreTrainedModel) -> Hashable:
        """Requests of equal keys can form a batch; None: this one runs alone."""
        return None

    def tokens_per_row(self, inputs: Sequence[Tensor]) -> int:
        """Width of a request in tokens; 1 if nothing is padded."""
        return 1

    def join(self, requests: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...]:
        """The validated inputs of several requests as one batch."""
        if len(requests) == 1:
            return tuple(requests[0])
        return tuple(
            _joined([inputs[index] for inputs in requests], partial(self._concatenate, tensor.name))
            for index, tensor in enumerate(requests[0])
        )

    def _concatenate(self, name: str, parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        return np.concatenate(parts)

    def rows_between(self, inputs: Sequence[Tensor], begin: int, end: int) -> tuple[Tensor, ...]:
        """Some rows of a request that has a batch key."""
        return tuple(each.rows(begin, end) for each in inputs)

    def join_outputs(self, parts: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...]:
        """The outputs of a request that ran in parts."""
        return tuple(
            _joined([outputs[index] for outputs in parts], self._join_rows)
            for index in range(len(parts[0]))
        )

    def _join_rows(self, parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        return np.concatenate(parts)

    def split(self, outputs: Sequence[Tensor], rows: Sequence[int]) -> list[tuple[Tensor, ...]]:
        """Each request's part of a batch's outputs, as if it had run alone.

        Raises ValueError if the outputs have other rows than the batch.
        """
        if any(not tensor.shape or tensor.shape[0] != sum(rows) for tensor in outputs):
            shapes = [list(tensor.shape) for tensor in outputs]
            raise ValueError(f"the outputs have shapes {shapes} for {sum(rows)} rows")
        ends = itertools.accumulate(rows)
        return [
            tuple(each.rows(end - n, end) for each in outputs)
            for n, end in zip(rows, ends, strict=True)
        ]


def _joined(
    parts: Sequence[Tensor], join: Callable[[Sequence[npt.NDArray[Any]]], npt.NDArray[Any]]
) -> Tensor:
    """The rows of all parts."""
    return Tensor(parts[0].name, parts[0].datatype, join([each.data for each in parts]))


@dataclass(frozen=True)
class PaddedBatching(Batching):
    """The batching of transformers' networks: padded tokens, or tensors of one shape."""

    rules: Mapping[str, TensorRule]
    required: tuple[str, ...]
    """Tensors of every request; a missing attention mask is added."""
    max_tokens: int = 0
    pads_left: bool = False
    eos_ids: frozenset[int] = frozenset()
    """Tokens that end a row of the first output; padding after the end is cut off."""
    max_rows: int | None = None

    def validate(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if not any(tensor.name in self.required for tensor in inputs):
            raise InvalidRequest(f"inference needs {list(self.required)}, got {_names(inputs)}")
        named = {tensor.name: tensor for tensor in inputs}
        if len(named) < len(inputs):
            raise InvalidRequest(f"two tensors have one name: {_names(inputs)}")
        first = named.get(self.required[0], inputs[0])
        for name in self.required:
            if name not in named and name == "attention_mask":
                named[name] = numeric_tensor(name, np.ones(first.shape, dtype=np.int64))
        if missing := [name for name in self.required if name not in named]:
            raise InvalidRequest(f"inference needs a tensor {missing[0]!r}, got {_names(inputs)}")
        shapes, lengths = set(), set()
        for name, tensor in named.items():
            shape = self._checked_shape(name, tensor)
            lengths.add(shape[0])
            if self.rules[name].trailing_shape is None:
                shapes.add(shape)
        if len(shapes) > 1:
            raise InvalidRequest(f"token tensors must have one shape, were {sorted(shapes)}")
        if len(lengths) > 1:
            rows = {name: len(tensor.data) for name, tensor in named.items()}
            raise InvalidRequest(f"all tensors must have the same rows, had {rows}")
        return tuple([named[name] for name in self.rules if name in named])

    def _checked_shape(self, name: str, tensor: Tensor) -> tuple[int, ...]:
        rule = self.rules.get(name)
        if rule is None:
            raise InvalidRequest(f"the network takes {list(self.rules)}, got {name!r}")
        if tensor.datatype != rule.datatype:
            raise InvalidRequest(f"tensor {name!r} must be {rule.datatype}, was {tensor.datatype}")
        shape = tensor.shape
        if rule.trailing_shape is None:
            is_fitting = len(shape) == 2 and 0 < shape[1] <= self.max_tokens
        else:
            is_fitting = len(shape) > 0 and shape[1:] == rule.trailing_shape
        if not is_fitting or not 0 < shape[0] <= MAX_ITEMS:
            tokens = (f"1 to {self.max_tokens} tokens",)
            sizes = tokens if rule.trailing_shape is None else rule.trailing_shape
            allowed = ", ".join([f"1 to {MAX_ITEMS} rows", *map(str, sizes)])
            raise InvalidRequest(f"tensor {name!r} must have shape [{allowed}], was {list(shape)}")
        if rule.upper_bound is not None:
            data = tensor.data
            if data.view(f"u{data.itemsize}").max() >= rule.upper_bound:  # as are those below 0
                raise InvalidRequest(
                    f"tensor {name!r} must hold 0 to {rule.upper_bound - 1}, held {data.min()} to"
                    f" {data.max()}"
                )
        elif not np.isfinite(tensor.data).all():
            raise InvalidRequest(f"tensor {name!r} must hold finite numbers, held NaN or infinity")
        return shape

    def batch_key(self, inputs: Sequence[Tensor], network: PreTrainedModel) -> Hashable:
        rules = self.rules
        options = [
            (each.name, frozenset(each.data.tolist())) if rules[each.name].is_option else each.name
            for each in inputs
        ]
        return tuple(options)

    def tokens_per_row(self, inputs: Sequence[Tensor]) -> int:
        first = inputs[0]
        return 1 if self.rules[first.name].trailing_shape is not None else first.shape[1]

    def _concatenate(self, name: str, parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        rule = self.rules[name]
        width = max(part.shape[1] for part in parts)
        if rule.trailing_shape is not None or all(part.shape[1] == width for part in parts):
            return np.concatenate(parts)
        rows = sum(len(part) for part in parts)
        joined = np.full((rows, width), rule.padding, dtype=NUMPY_OF[rule.datatype])
        row = 0
        for part in parts:
            columns = slice(width - part.shape[1], None) if self.pads_left else slice(part.shape[1])
            joined[row : row + len(part), columns] = part
            row += len(part)
        return joined

    def _join_rows(self, parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Rows of generated tokens differ in length and are padded."""
        if parts[0].ndim != 2 or len({part.shape[1] for part in parts}) == 1:
            return np.concatenate(parts)
        width = max(part.shape[1] for part in parts)
        padding = self.rules[self.required[0]].padding
        return np.concatenate(
            [
                np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=padding)
                for part in parts
            ]
        )

    def split(self, outputs: Sequence[Tensor], rows: Sequence[int]) -> list[tuple[Tensor, ...]]:
        parts = super().split(outputs, rows)
        if not self.eos_ids:
            return parts
        return [
            (Tensor(first.name, first.datatype, self._cut(first.data)), *others)
            for first, *others in parts
        ]

    def _cut(self, data: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Without the columns after the longest row's end; column 0 is a decoder's start token."""
        is_end = np.isin(data[:, 1:], list(self.eos_ids))
        if not is_end.any(axis=1).all():
            return data
        return np.ascontiguousarray(data[:, : int(is_end.argmax(axis=1).max()) + 2])

    def example(self, rows: int, tokens: int) -> tuple[Tensor, ...]:
        """Texts of `tokens` tokens, or blank images."""
        tensors = []
        for name, rule in self.rules.items():
            if rule.is_option:
                continue
            dtype = NUMPY_OF[rule.datatype]
            if rule.trailing_shape is not None:
                data = np.zeros((rows, *rule.trailing_shape), dtype=dtype)
            elif name == "attention_mask":
                data = np.ones((rows, tokens), dtype=dtype)
            elif name == self.required[0]:
                data = np.arange(rows * tokens, dtype=dtype).reshape(rows, tokens)
                data = data % (rule.upper_bound or 2)
            else:
                data = np.zeros((rows, tokens), dtype=dtype)
            tensors.append(Tensor(name, rule.datatype, data))
        return tuple(tensors)


def _names(inputs: Sequence[Tensor]) -> list[str]:
    return sorted(tensor.name for tensor in inputs)


class Processor(ABC):
    """One model's task. All methods block and are thread-safe.

    By default a request's items are its tensors, and the network's outputs those of V2.
    """

    batching: Batching
    """How its tensors are validated and batched."""
    answers_openai = False
    """Whether OpenAI's routes are for its models."""

    @property
    @abstractmethod
    def platform(self) -> str:
        """`platform` of V2 metadata: transformers, onnx and so on."""

    @property
    def waits_for_sandbox(self) -> bool:
        """True if calls wait for the sandbox's processes, and so need threads of their own."""
        return False

    @property
    def is_quick(self) -> bool:
        """True if the event loop may convert up to `QUICK_BYTES`; false for images, for example."""
        return False

    @abstractmethod
    def read_instances(self, instances: Sequence[Any]) -> Sequence[Any]:
        """Items from a V1 body; raises InvalidRequest."""

    def read_tensors(self, tensors: Sequence[Tensor]) -> Sequence[Any]:
        """Items from a V2 body; raises InvalidRequest."""
        return tensors

    def preprocess(self, items: Sequence[Any]) -> tuple[Tensor, ...]:
        """The network's inputs."""
        return tuple(items)

    @abstractmethod
    def infer(self, network: Any, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run the network; called in the device's thread only."""

    def postprocess(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """V2 outputs from the network's outputs."""
        return tuple(outputs)

    @abstractmethod
    def predictions(self, outputs: Sequence[Tensor]) -> list[Any]:
        """V1 predictions from V2 outputs."""

    @abstractmethod
    def warm_up(self, network: Any) -> None:
        """One short inference; called in the device's thread only."""

    @abstractmethod
    def input_types(self) -> list[dict[str, Any]]:
        """V2 metadata of the inputs."""

    @abstractmethod
    def output_types(self) -> list[dict[str, Any]]:
        """V2 metadata of the outputs."""


def texts_of(tensor: Tensor) -> list[str]:
    """The strings of a tensor of the type BYTES; raises InvalidRequest."""
    if tensor.datatype != BYTES:
        raise InvalidRequest(f"input {tensor.name!r} must be BYTES, was {tensor.datatype}")
    try:
        return [value.decode("utf-8") for value in tensor.data.ravel()]
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"input {tensor.name!r} must hold UTF-8, but byte {error.start} of one is not"
        ) from error


def one_each(name: str, values: list[Any], count: int) -> list[Any]:
    """`count` values of an input that has so many, or one for all; raises InvalidRequest."""
    if len(values) not in {1, count}:
        raise InvalidRequest(
            f"input {name!r} must have 1 value or {count}, one per text, has {len(values)}"
        )
    return values if len(values) == count else values * count


def nested_tensor(name: str, datatype: str, data: Any) -> Tensor:
    """A tensor from nested lists of V1, whose depth and lengths give its shape."""
    shape: list[int] = []
    inner = data
    while isinstance(inner, list):
        shape.append(len(inner))
        inner = inner[0] if inner else None
    values = data if shape else [data]
    path = f"instances, input {name!r}"
    return from_json(values, parse_tensor_spec(name, datatype, shape, path))
