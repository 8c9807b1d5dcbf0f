"""Tensors as lists of a JSON document, as V2 has them over HTTP."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from runtime.errors import InvalidRequest
from runtime.wire.raw_tensors import string_array
from runtime.wire.tensors import BYTES, NUMPY_OF, ONLY_RAW, Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime.wire.tensors import Description

TYPES_OF: Mapping[str, set[type]] = {"b": {bool}, "f": {int, float}}
"""What JSON values may be of numpy's kinds; whole numbers for all others."""


def from_json(data: Any, about: Description) -> Tensor:
    """A tensor from its list, flat or nested; raises InvalidRequest."""
    if not isinstance(data, list):
        raise InvalidRequest(f"{about.place}: 'data' must be a list, was {type(data).__name__}")
    if about.datatype in ONLY_RAW:
        raise InvalidRequest(f"{about.place}: {about.datatype} can only be sent in binary")
    flat = _flattened(data, about)
    if len(flat) != about.count:
        raise InvalidRequest(
            f"{about.place}: shape {list(about.shape)} needs {about.count} elements,"
            f" data has {len(flat)}"
        )
    kinds = set(map(type, flat))  # one pass in C: data may have millions of elements
    if about.datatype == BYTES:
        if not kinds <= {str}:
            raise InvalidRequest(f"{about.place}: data of datatype BYTES must be strings")
        return Tensor(about.name, BYTES, string_array([text.encode() for text in flat], about))
    return Tensor(about.name, about.datatype, _numbers(flat, kinds, about))


def _numbers(flat: list[Any], kinds: set[type], about: Description) -> npt.NDArray[Any]:
    dtype = NUMPY_OF[about.datatype]
    if not kinds <= TYPES_OF.get(dtype.kind, {int}):
        raise InvalidRequest(f"{about.place}: data must be values of datatype {about.datatype}")
    try:
        with np.errstate(over="raise"):
            return np.array(flat, dtype=dtype).reshape(about.shape)
    except (ValueError, OverflowError, FloatingPointError) as error:
        raise InvalidRequest(
            f"{about.place}: data does not fit {about.datatype}: {error}"
        ) from error


def _flattened(data: list[Any], about: Description) -> list[Any]:
    """All elements of a list that is flat, or nested as the shape says."""
    sizes = [len(data)]
    while data and isinstance(data[0], list):
        if not all(isinstance(row, list) for row in data):
            raise InvalidRequest(f"{about.place}: data mixes lists and values at one depth")
        if len(set(map(len, data))) > 1:
            raise InvalidRequest(f"{about.place}: data has lists of different lengths at one depth")
        sizes.append(len(data[0]))
        data = [value for row in data for value in row]
    if len(sizes) > 1 and tuple(sizes) != about.shape:
        raise InvalidRequest(
            f"{about.place}: data is nested as {reprlib.repr(sizes)}, shape is {list(about.shape)}"
        )
    return data


def to_json(tensor: Tensor) -> list[Any] | None:
    """A tensor's elements; None where JSON cannot hold them and they go in binary all the same."""
    if tensor.datatype in ONLY_RAW:
        return None
    if tensor.datatype != BYTES:
        return list(tensor.data.ravel().tolist())
    try:
        return [value.decode() for value in tensor.data.ravel()]
    except UnicodeDecodeError:
        return None
