"""Rows of features for libraries: what a tabular model takes and answers, checks, conversion.

Rows are one matrix, or one tensor per column.
"""

from __future__ import annotations

import importlib
import json
import mmap
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import BYTES, DATATYPE_OF, NUMPY_OF, Tensor, bytes_tensor
from common.shown_value import shown
from runtime.engines.libraries.boosters import read_ubjson
from runtime.errors import EngineMissing, InferenceFailed, ModelInvalid

if TYPE_CHECKING:
    import numpy.typing as npt


OUTPUT: Final = "output-0"
"""The name of the output, as of KServe's servers."""
INPUT: Final = "input-0"
"""The name of a matrix of features, or of texts; a client may give it any other one."""


def is_matrix(inputs: Sequence[Tensor]) -> bool:
    """Whether the rows are one tensor, not one tensor per column."""
    return len(inputs) == 1 and len(inputs[0].shape) == 2


def check_features(
    inputs: Sequence[Tensor],
    *,
    count: int | None,
    names: Sequence[str] | None,
    may_lack_columns: bool = False,
) -> None:
    """Raise InvalidRequest unless the inputs are rows of the model's features.

    Args:
        inputs: one tensor of shape [rows, features], or one of shape [rows] per column.
        count: of the model's features; None: not known.
        names: of the model's features; None: columns are taken in the order given.
        may_lack_columns: whether columns of these names may be missing (`numbers`).
    """
    if is_matrix(inputs):
        seen = inputs[0].shape[1]
        if count is not None and seen != count:
            raise InvalidRequest(
                f"each row must have {count} features, had {seen}"
                f" (input {inputs[0].name!r} of shape {list(inputs[0].shape)})"
            )
        return
    given = [tensor.name for tensor in inputs]
    if names is not None:
        absent, extra = sorted(set(names) - set(given)), sorted(set(given) - set(names))
        missing = [] if may_lack_columns else absent
        if missing or extra:
            raise InvalidRequest(
                f"the model takes one tensor of shape [rows, {len(names)}], or the columns"
                f" {shown(list(names))}; missing {missing[:8]}, unknown {extra[:8]}"
            )
    elif count is not None and len(given) != count:
        raise InvalidRequest(
            f"the model takes one tensor of shape [rows, {count}], or {count} columns;"
            f" got {len(given)} of shape {list(inputs[0].shape)}"
        )


def numbers(
    inputs: Sequence[Tensor], names: Sequence[str] | None, dtype: type[np.floating[Any]]
) -> npt.NDArray[Any]:
    """The rows as one matrix, columns in the order of `names`; raises InvalidRequest for text.

    A column that is not there holds missing numbers (NaN).
    """
    text = [tensor.name for tensor in inputs if tensor.datatype == BYTES]
    if text:
        raise InvalidRequest(f"features must be numbers; {text[:8]} held strings")
    if is_matrix(inputs):
        return np.ascontiguousarray(inputs[0].data, dtype)
    order = names if names is not None else [tensor.name for tensor in inputs]
    place = {name: index for index, name in enumerate(order)}
    rows = np.full((inputs[0].shape[0], len(order)), np.nan, dtype)
    for tensor in inputs:
        rows[:, place[tensor.name]] = tensor.data.reshape(-1)
    return rows


def output_tensor(values: npt.NDArray[Any], name: str = OUTPUT) -> Tensor:
    """A tensor of the library's result; raises InferenceFailed for types without a datatype."""
    values = np.ascontiguousarray(values).reshape(values.shape)
    if values.dtype in DATATYPE_OF:
        return Tensor(name, DATATYPE_OF[values.dtype], values)
    if values.dtype.kind in "UO" and all(isinstance(each, str) for each in values.flat):
        flat = bytes_tensor(name, [each.encode() for each in values.flat])
        return Tensor(name, BYTES, flat.data.reshape(values.shape))
    raise InferenceFailed(f"the model gave values of type {values.dtype}, which have no datatype")


@dataclass(frozen=True, slots=True)
class Field:
    """An input or output, without its number of rows."""

    name: str
    datatype: str = "FP64"
    row_shape: tuple[int, ...] = ()
    example: float | str = 0.0
    """A value that the model knows: of a column of categories one of them."""

    def metadata(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": [-1, *self.row_shape]}

    def rows(self, count: int) -> Tensor:
        """So many equal rows of the example."""
        shape = (count, *self.row_shape)
        if self.datatype == BYTES:
            return Tensor(self.name, BYTES, np.full(shape, str(self.example).encode(), object))
        return Tensor(
            self.name, self.datatype, np.full(shape, self.example, NUMPY_OF[self.datatype])
        )


@dataclass(frozen=True, slots=True)
class TabularSignature:
    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...] = ()

    def answering(self, outputs: Sequence[Tensor]) -> TabularSignature:
        """The same inputs, with outputs like these."""
        fields = (Field(each.name, each.datatype, each.shape[1:]) for each in outputs)
        return replace(self, outputs=tuple(fields))


def matrix(features: int) -> tuple[Field, ...]:
    return (Field(INPUT, row_shape=(features,)),)


def columns(names: Sequence[str]) -> tuple[Field, ...]:
    return tuple(Field(name) for name in names)


def texts() -> tuple[Field, ...]:
    return (Field(INPUT, BYTES, example="text"),)


def output(datatype: str, *row_shape: int) -> tuple[Field, ...]:
    return (Field(OUTPUT, datatype, row_shape),)


def one_line(error: BaseException) -> str:
    """The text of a library's error, for a message of ours: on one line, 500 characters at most."""
    return " ".join(str(error).split())[:500]


def import_library(module: str, extra: str) -> ModuleType:
    """An optional library, imported with its first model; raises EngineMissing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise EngineMissing(
            f"the pod has no {module} ({error}); add it to the image with"
            f" pip install 'pilotlight[{extra}]'"
        ) from error


_UNREADABLE: Final = (
    OSError, KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError,
    ModelInvalid, zipfile.BadZipFile,
)  # fmt: skip
_DEFAULT_NAMES: Final = re.compile(r"Column_\d+")
"""LightGBM's, of features without names."""
_HEAD_BYTES: Final = 64 * 1024**2
_TAIL_BYTES: Final = 1024**2
_OF_KIND: Final = {"f": "FP64", "i": "INT64", "u": "INT64", "b": "BOOL", "U": BYTES, "O": BYTES}


def stored_signature(path: Path, engine: str, *, probabilities: bool) -> TabularSignature | None:
    """By the engine's name; None where the file does not say it. Blocks."""
    try:
        match engine:
            case "lightgbm":
                return lightgbm_signature(_head(path, b"\nTree=").decode())
            case "xgboost":
                return _of_xgboost(path)
            case "sklearn" if path.suffix == ".skops":
                return _of_skops(path, probabilities=probabilities)
    except _UNREADABLE:
        return None
    return None


def lightgbm_signature(head: str) -> TabularSignature:
    """From the lines before the first tree; raises KeyError, ValueError."""
    fields = dict(line.split("=", 1) for line in head.splitlines() if "=" in line)
    names = fields["feature_names"].split(" ")
    are_named = not all(_DEFAULT_NAMES.fullmatch(name) for name in names)
    classes = int(fields["num_class"])
    return TabularSignature(
        columns(names) if are_named else matrix(len(names)),
        output("FP64", *([classes] if classes > 1 else [])),
    )


def xgboost_signature(
    names: Sequence[str] | None, shape: Mapping[str, Any], objective: str
) -> TabularSignature:
    """`shape`: the file's `learner_model_param`."""
    classes, targets = int(shape.get("num_class", 0)), int(shape.get("num_target", 1))
    widths = [classes] if classes > 1 and objective != "multi:softmax" else []
    return TabularSignature(
        columns(names) if names else matrix(int(shape["num_feature"])),
        output("FP32", *([targets] if targets > 1 else widths)),
    )


def _head(path: Path, end: bytes) -> bytes:
    with path.open("rb") as file, _mapped(file.fileno()) as content:
        at = content.find(end, 0, _HEAD_BYTES)
        return content[: at if at >= 0 else _TAIL_BYTES]


def _of_xgboost(path: Path) -> TabularSignature:
    """From three values: of the names before the trees, of two objects behind them."""
    with path.open("rb") as file, _mapped(file.fileno()) as content:
        tail = max(0, len(content) - _TAIL_BYTES)
        names = _value(content, content.find(b"feature_names", 0, _HEAD_BYTES))
        shape = _value(content, content.rfind(b"learner_model_param", tail))
        objective = _value(content, content.rfind(b"objective", tail))
    return xgboost_signature([str(each) for each in names], shape, str(objective["name"]))


def _value(content: mmap.mmap, at: int) -> Any:
    """What belongs to the key at this place, in JSON or UBJSON."""
    if at < 0:
        raise ValueError("the key is not there")
    key = re.compile(rb'[a-z_]+("\s*:\s*)?').match(content, at)
    if key is None:
        raise ValueError("no key is there")
    if key[1] is None:
        return read_ubjson(content[key.end() : key.end() + _TAIL_BYTES])
    text = content[key.end() : key.end() + _TAIL_BYTES].decode(errors="ignore")
    return json.JSONDecoder().raw_decode(text)[0]


def _mapped(descriptor: int) -> mmap.mmap:
    return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)


def _of_skops(path: Path, *, probabilities: bool) -> TabularSignature | None:
    with zipfile.ZipFile(path) as archive:
        root = json.loads(archive.read("schema.json"))
        names, count = _found(root, "feature_names_in_", 0), _found(root, "n_features_in_", 0)
        labels = _found(root, "classes_", -1)
        classes = _array(archive, labels) if labels is not None else None
        named = [str(each) for each in _array(archive, names)] if names is not None else None
    inputs = columns(named) if named else matrix(json.loads(count["content"])) if count else texts()
    if classes is None:
        return TabularSignature(inputs, output("FP64"))
    if probabilities:
        return TabularSignature(inputs, output("FP64", len(classes)))
    datatype = DATATYPE_OF.get(classes.dtype) or _OF_KIND[classes.dtype.kind]
    return TabularSignature(inputs, output(datatype))


def _found(node: Any, attribute: str, step: int) -> Any:
    """The attribute of an estimator, or of that step of a pipeline, or of the best of a search."""
    for _ in range(8):
        held = node["content"]["content"]
        if attribute in held:
            return held[attribute]
        if "best_estimator_" in held:
            node = held["best_estimator_"]
        elif "steps" in held:
            node = held["steps"]["content"][step]["content"][1]
        else:
            return None
    return None


def _array(archive: zipfile.ZipFile, node: Mapping[str, Any]) -> Any:
    if node.get("type") == "numpy":
        return np.load(BytesIO(archive.read(node["file"])), allow_pickle=False)
    return np.asarray([json.loads(each["content"]) for each in node["content"]])
