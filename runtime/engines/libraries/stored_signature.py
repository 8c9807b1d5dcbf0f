"""What a tabular model takes and answers, as its file says, without its library.

For metadata before a model is loaded; a loaded one says it more exactly, with types of columns. A
file that does not say it, or is damaged, has no signature here: its load tells why.
"""

from __future__ import annotations

import json
import mmap
import re
import zipfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np

from common.inference_protocol.tensors import BYTES, DATATYPE_OF
from runtime.engines.libraries.rows import TabularSignature, columns, matrix, output, texts
from runtime.engines.libraries.xgboost_file import read_ubjson
from runtime.errors import ModelInvalid

_UNREADABLE: Final = (
    OSError,
    KeyError,
    TypeError,
    ValueError,
    IndexError,
    AttributeError,
    RecursionError,
    ModelInvalid,
    zipfile.BadZipFile,
)
_DEFAULT_NAMES: Final = re.compile(r"Column_\d+")
"""LightGBM's, of features without names."""
_HEAD_BYTES: Final = 64 * 1024**2
_TAIL_BYTES: Final = 1024**2
_DATATYPES: Final = {"f": "FP64", "i": "INT64", "u": "INT64", "b": "BOOL", "U": BYTES, "O": BYTES}


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
    datatype = DATATYPE_OF.get(classes.dtype) or _DATATYPES[classes.dtype.kind]
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
