"""Requests' tensors as one batch and back: what each must be, padding, cutting outputs apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from runtime.errors import InvalidRequest
from runtime.wire.tensors import MAX_ITEMS, NUMPY_OF, Tensor, numeric_tensor

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    import numpy.typing as npt
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class TensorRule:
    """What one input tensor of a network must be: [rows, tokens], or [rows, *trailing]."""

    datatype: str
    trailing: tuple[int, ...] | None = None
    """Sizes of all dimensions but the first; None: tokens, padded where requests differ."""
    padding: int = 0
    high: int | None = None
    """Values are below this and not negative; None: any finite ones."""


class Batching(Protocol):
    """How the requests of one network share an inference. All methods may block."""

    @property
    def max_tokens(self) -> int:
        """Longest text; 0 where there are no tokens."""

    @property
    def max_rows(self) -> int | None:
        """Most items of one inference; None: what fits."""

    def validate(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The inputs as they may join a batch; raises InvalidRequest for those that never could."""

    def rows_of(self, inputs: Sequence[Tensor]) -> int:
        """Items of a request."""

    def batch_key(self, inputs: Sequence[Tensor], network: PreTrainedModel) -> Hashable:
        """Requests of equal kind can be joined; None: this one runs alone."""

    def tokens_per_row(self, inputs: Sequence[Tensor]) -> int:
        """Width in tokens; 1 where nothing is padded."""

    def join(self, requests: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...]:
        """The checked inputs of several requests as those of one."""

    def split(self, outputs: Sequence[Tensor], rows: Sequence[int]) -> list[tuple[Tensor, ...]]:
        """Each request's part of a batch's outputs, as if it had run alone."""

    def example(self, rows: int, tokens: int) -> tuple[Tensor, ...]:
        """Inputs that the network takes, for measuring."""


@dataclass(frozen=True, slots=True)
class PaddedBatching:
    """How a network's requests are put together and its outputs taken apart."""

    rules: Mapping[str, TensorRule]
    needed: tuple[str, ...]
    """Tensors that every request has; those of a text end with its mask."""
    max_tokens: int = 0
    pads_left: bool = False
    end_ids: frozenset[int] = frozenset()
    """Tokens that end a row of the output; what a row is padded with after its end is cut off."""
    max_rows: int | None = None

    def validate(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The inputs as they may join a batch; raises InvalidRequest for those that never could."""
        if not any(tensor.name in self.needed for tensor in inputs):
            raise InvalidRequest(f"inference needs {list(self.needed)}, got {_names(inputs)}")
        named = {tensor.name: tensor for tensor in inputs}
        if len(named) < len(inputs):
            raise InvalidRequest(f"a tensor is there twice: {_names(inputs)}")
        leader = named.get(self.needed[0], inputs[0])
        for name in self.needed:
            if name not in named and name == "attention_mask":
                named[name] = numeric_tensor(name, np.ones(leader.shape, dtype=np.int64))
        if missing := [name for name in self.needed if name not in named]:
            raise InvalidRequest(f"inference needs a tensor {missing[0]!r}, got {_names(inputs)}")
        for name, tensor in named.items():
            self._check(name, tensor)
        shapes = {
            tensor.shape for name, tensor in named.items() if self.rules[name].trailing is None
        }
        if len(shapes) > 1:
            raise InvalidRequest(f"token tensors must have one shape, were {sorted(shapes)}")
        return tuple(named[name] for name in self.rules if name in named)

    def _check(self, name: str, tensor: Tensor) -> None:
        rule = self.rules.get(name)
        if rule is None:
            raise InvalidRequest(f"the network takes {list(self.rules)}, got {name!r}")
        if tensor.datatype != rule.datatype:
            raise InvalidRequest(f"tensor {name!r} must be {rule.datatype}, was {tensor.datatype}")
        shape = tensor.shape
        if rule.trailing is None:
            allowed = f"[1 to {MAX_ITEMS} rows, 1 to {self.max_tokens} tokens]"
            is_fitting = len(shape) == 2 and 0 < shape[1] <= self.max_tokens
        else:
            allowed = f"[1 to {MAX_ITEMS} rows, {', '.join(map(str, rule.trailing))}]"
            is_fitting = shape[1:] == rule.trailing
        if not is_fitting or not 0 < shape[0] <= MAX_ITEMS:
            raise InvalidRequest(f"tensor {name!r} must have shape {allowed}, was {list(shape)}")
        if rule.high is not None:
            low, high = tensor.data.min(), tensor.data.max()
            if low < 0 or high >= rule.high:
                raise InvalidRequest(
                    f"tensor {name!r} must hold 0 to {rule.high - 1}, held {low} to {high}"
                )
        elif not np.isfinite(tensor.data).all():
            raise InvalidRequest(f"tensor {name!r} must hold finite numbers, held NaN or infinity")

    def rows_of(self, inputs: Sequence[Tensor]) -> int:
        """Items of a request."""
        return len(inputs[0].data)

    def batch_key(self, inputs: Sequence[Tensor], network: PreTrainedModel) -> Hashable:
        """Requests of equal kind have the same tensors, so that they can be joined."""
        del network
        return tuple(tensor.name for tensor in inputs)

    def tokens_per_row(self, inputs: Sequence[Tensor]) -> int:
        """Width in tokens; 1 where nothing is padded."""
        leader = inputs[0]
        return 1 if self.rules[leader.name].trailing is not None else leader.shape[1]

    def join(self, requests: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...]:
        """The checked inputs of several requests as those of one."""
        if len(requests) == 1:
            return tuple(requests[0])
        return tuple(
            Tensor(tensor.name, tensor.datatype, self._stacked(tensor.name, index, requests))
            for index, tensor in enumerate(requests[0])
        )

    def _stacked(
        self, name: str, index: int, requests: Sequence[Sequence[Tensor]]
    ) -> npt.NDArray[Any]:
        parts = [inputs[index].data for inputs in requests]
        rule = self.rules[name]
        width = max(part.shape[1] for part in parts)
        if rule.trailing is not None or all(part.shape[1] == width for part in parts):
            return np.concatenate(parts)
        rows = sum(len(part) for part in parts)
        joined = np.full((rows, width), rule.padding, dtype=NUMPY_OF[rule.datatype])
        row = 0
        for part in parts:
            columns = slice(width - part.shape[1], None) if self.pads_left else slice(part.shape[1])
            joined[row : row + len(part), columns] = part
            row += len(part)
        return joined

    def split(self, outputs: Sequence[Tensor], rows: Sequence[int]) -> list[tuple[Tensor, ...]]:
        """Each request's part of a batch's outputs, as if it had run alone."""
        if any(len(tensor.data) != sum(rows) for tensor in outputs):
            seen = [list(tensor.shape) for tensor in outputs]
            raise ValueError(f"the network gave {seen} for {sum(rows)} rows")
        parts, start = [], 0
        for count in rows:
            part = [
                Tensor(tensor.name, tensor.datatype, self._cut(tensor.data[start : start + count]))
                for tensor in outputs
            ]
            parts.append(tuple(part))
            start += count
        return parts

    def _cut(self, data: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Without columns after the end of the longest row; the first one begins a decoder."""
        if not self.end_ids:
            return data
        is_end = np.isin(data[:, 1:], list(self.end_ids))
        if not is_end.any(axis=1).all():
            return data
        return np.ascontiguousarray(data[:, : int(is_end.argmax(axis=1).max()) + 2])

    def example(self, rows: int, tokens: int) -> tuple[Tensor, ...]:
        """Inputs for measuring: texts of `tokens` tokens, or blank pictures."""
        tensors = []
        for name, rule in self.rules.items():
            dtype = NUMPY_OF[rule.datatype]
            if rule.trailing is not None:
                data = np.zeros((rows, *rule.trailing), dtype=dtype)
            elif name == "attention_mask":
                data = np.ones((rows, tokens), dtype=dtype)
            elif name == self.needed[0]:
                data = np.arange(rows * tokens, dtype=dtype).reshape(rows, tokens)
                data = data % (rule.high or 2)
            else:
                data = np.zeros((rows, tokens), dtype=dtype)
            tensors.append(Tensor(name, rule.datatype, data))
        return tuple(tensors)


def _names(inputs: Sequence[Tensor]) -> list[str]:
    return sorted(tensor.name for tensor in inputs)
