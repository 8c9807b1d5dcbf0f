"""Tensors as JSON lists, as in V2 requests and responses over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from registry.shown_value import kind_of, shown
from runtime.errors import InvalidRequest
from runtime.wire.raw_tensors import string_array
from runtime.wire.tensors import BYTES, NUMPY_OF, RAW_ONLY, Tensor, TensorSpec, does_not_fit

if TYPE_CHECKING:
    from collections.abc import Mapping


TYPES_OF: Mapping[str, set[type]] = {"b": {bool}, "f": {int, float}}
"""Types of JSON values allowed for numpy's kinds; all other kinds take whole numbers."""


def from_json(data: Any, spec: TensorSpec) -> Tensor:
    """A tensor from its list, flat or nested; raises InvalidRequest."""
    if not isinstance(data, list):
        raise InvalidRequest(f"{spec.path}: 'data' must be an array, was {kind_of(data)}")
    if spec.datatype in RAW_ONLY:
        raise InvalidRequest(f"{spec.path}: {spec.datatype} can only be sent in binary")
    flat = _flatten(data, spec)
    if len(flat) != spec.count:
        raise InvalidRequest(
            f"{spec.path}: shape {list(spec.shape)} needs {spec.count} elements,"
            f" data has {len(flat)}"
        )
    types = set(map(type, flat))  # one pass in C: data may have millions of elements
    if spec.datatype == BYTES:
        if not types <= {str}:
            raise InvalidRequest(f"{spec.path}: data of datatype BYTES must be strings")
        return Tensor(spec.name, BYTES, string_array([text.encode() for text in flat], spec))
    return Tensor(spec.name, spec.datatype, _numbers(flat, types, spec))


def _numbers(flat: list[Any], types: set[type], spec: TensorSpec) -> npt.NDArray[Any]:
    dtype = NUMPY_OF[spec.datatype]
    if not types <= TYPES_OF.get(dtype.kind, {int}):
        raise InvalidRequest(f"{spec.path}: data must be values of datatype {spec.datatype}")
    try:
        with np.errstate(over="raise"):
            return np.array(flat, dtype=dtype).reshape(spec.shape)
    except (ValueError, OverflowError, FloatingPointError) as error:
        raise does_not_fit(flat, "data", spec) from error


def _flatten(data: list[Any], spec: TensorSpec) -> list[Any]:
    sizes = [len(data)]
    while data and isinstance(data[0], list):
        if not all(isinstance(row, list) for row in data):
            raise InvalidRequest(f"{spec.path}: data mixes arrays and values at one depth")
        if len(set(map(len, data))) > 1:
            raise InvalidRequest(f"{spec.path}: data has arrays of different lengths at one depth")
        sizes.append(len(data[0]))
        data = [value for row in data for value in row]
    if len(sizes) > 1 and tuple(sizes) != spec.shape:
        raise InvalidRequest(
            f"{spec.path}: data is nested as {shown(sizes)}, shape is {list(spec.shape)}"
        )
    return data


def to_json(tensor: Tensor) -> list[Any] | None:
    """A tensor's elements; None if JSON cannot hold them, so they must be sent in binary."""
    if tensor.datatype in RAW_ONLY:
        return None
    if tensor.datatype != BYTES:
        return list(tensor.data.ravel().tolist())
    try:
        return [value.decode() for value in tensor.data.ravel()]
    except UnicodeDecodeError:
        return None
