"""Checks of XGBoost's and LightGBM's files, whose errors can end the process that reads them.

A node that names a child or feature that does not exist would make a prediction read foreign
memory, and a circle would never end, so files with such nodes are refused here. XGBoost's are
JSON, or Universal Binary JSON as it writes it (ubjson.org, draft 12).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from runtime.errors import ModelInvalid

_MAX_FEATURES = 2**31
_MAX_GROUPS = 2**16
"""Each takes memory in every row of a prediction, also without a tree of its own."""
_NODE_FIELDS = (
    "left_children", "right_children", "parents", "split_indices", "split_conditions", "split_type",
    "default_left", "base_weights", "loss_changes", "sum_hessian",
)  # fmt: skip
LEAF = -1
_NO_PARENT = 2**31 - 1
_XGBOOST_CATEGORICAL = 1
"""Value of `split_type`."""
MAX_DEPTH: Final = 64
_NUMBERS: Final = {
    b"i": ">i1", b"U": ">u1", b"I": ">i2", b"l": ">i4", b"L": ">i8", b"d": ">f4", b"D": ">f8",
}  # fmt: skip
_CONSTANTS: Final = {b"Z": None, b"T": True, b"F": False}


def check_xgboost(content: bytes) -> None:
    """Raise ModelInvalid if a booster in XGBoost's JSON or UBJSON is unsound."""
    if not content.startswith(b"{"):
        raise ModelInvalid(
            "the file is neither XGBoost's JSON nor its UBJSON; save it again with"
            " Booster.save_model('model.ubj')"
        )
    is_text = content[1:].lstrip()[:1] in (b'"', b"}")
    if is_text and b"\\u" in content:
        raise ModelInvalid(  # XGBoost leaves such names as they are written
            "the file has characters written as \\u, which XGBoost does not decode; save it again"
            " with Booster.save_model('model.ubj')"
        )
    try:
        _check_document(orjson.loads(content) if is_text else read_ubjson(content))
    except orjson.JSONDecodeError as error:
        raise ModelInvalid(f"the file is cut short or no JSON: {error}") from error
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, IndexError) as error:
        raise ModelInvalid(f"the file lacks parts of a booster: {error!r}") from error


def _check_document(document: Mapping[str, Any]) -> None:
    learner = document["learner"]
    shape = learner["learner_model_param"]
    features = int(shape["num_feature"])
    groups = max(1, int(shape.get("num_class", 0))) * max(1, int(shape.get("num_target", 1)))
    if not 0 < features < _MAX_FEATURES or not 0 < groups <= _MAX_GROUPS:
        raise ModelInvalid(
            f"the booster has {features} features and {groups} groups, of which {_MAX_GROUPS} are"
            " allowed"
        )
    booster = learner["gradient_booster"]
    if booster["name"] == "gblinear":
        weights = len(booster["model"]["weights"])
        if weights != (features + 1) * groups:
            raise ModelInvalid(f"the booster has {weights} weights for {features} features")
        return
    model = booster["gbtree"]["model"] if booster["name"] == "dart" else booster["model"]
    trees = model["trees"]
    if booster["name"] == "dart" and len(booster["weight_drop"]) != len(trees):
        raise ModelInvalid("the booster must have one weight per tree")
    _check_xgboost_groups(model, len(trees), groups)
    if sorted(int(tree["id"]) for tree in trees) != [*range(len(trees))]:
        raise ModelInvalid("its trees must have the ids from 0, each once")  # it writes to them
    for number, tree in enumerate(trees):
        _check_xgboost_tree(number, tree, features)


def _check_xgboost_groups(model: Mapping[str, Any], trees: int, groups: int) -> None:
    info = _whole_numbers(model["tree_info"])
    if len(info) != trees or int(model["gbtree_model_param"]["num_trees"]) != trees:
        raise ModelInvalid(f"the booster holds {trees} trees, and says otherwise")
    if len(info) and not 0 <= info.min() <= info.max() < groups:
        raise ModelInvalid(f"its trees must belong to one of {groups} groups each")
    ends = _whole_numbers(model.get("iteration_indptr", []))
    if len(ends) and (ends[0] != 0 or ends[-1] != trees or bool((np.diff(ends) < 0).any())):
        raise ModelInvalid("its iterations name trees that it does not have")


def _check_xgboost_tree(number: int, tree: Mapping[str, Any], features: int) -> None:
    """Children are -1 for leaves; each node but the root has at most one parent."""
    count = int(tree["tree_param"]["num_nodes"])
    for name in _NODE_FIELDS:
        if name in tree and len(tree[name]) != count:
            raise ModelInvalid(f"{name} of tree {number} must have {count} values")
    left, right, split, parents = (
        _whole_numbers(tree[name])
        for name in ("left_children", "right_children", "split_indices", "parents")
    )
    if int(tree["tree_param"].get("size_leaf_vector", "1")) > 1:
        raise ModelInvalid("trees of vectors are not read; train with multi_strategy one_output")
    inner = left != LEAF
    children = np.concatenate([left[inner], right[inner]])
    is_sound = (
        0 < count == len(left) == len(right) == len(split)
        and bool((right[~inner] == LEAF).all())
        and bool(((children > 0) & (children < count)).all())
        and bool((np.bincount(children, minlength=1) <= 1).all())
        and bool(((split[inner] >= 0) & (split[inner] < features)).all())
        and bool((parents[children] == np.tile(np.flatnonzero(inner), 2)).all())
        and bool(((parents[1:] >= 0) & (parents[1:] < count)).all() and parents[0] == _NO_PARENT)
    )
    if not is_sound:
        raise ModelInvalid(f"tree {number} names nodes or features that it does not have")
    _check_xgboost_categories(number, tree, count)


def _check_xgboost_categories(number: int, tree: Mapping[str, Any], count: int) -> None:
    nodes, begins, sizes = (
        _whole_numbers(tree.get(name, []))
        for name in ("categories_nodes", "categories_segments", "categories_sizes")
    )
    total = len(tree.get("categories", []))
    kinds = _whole_numbers(tree.get("split_type", []))
    is_sound = (
        len(nodes) == len(begins) == len(sizes)
        and bool(((nodes >= 0) & (nodes < count)).all())
        and bool(((begins >= 0) & (sizes >= 0) & (begins + sizes <= total)).all())
        and set(np.flatnonzero(kinds == _XGBOOST_CATEGORICAL).tolist()) <= set(nodes.tolist())
    )
    if not is_sound:
        raise ModelInvalid(f"tree {number} names categories that it does not have")


def _whole_numbers(values: Any) -> npt.NDArray[np.int64]:
    found = np.asarray(values)
    if found.size and found.dtype.kind not in "iub":
        raise ValueError(f"whole numbers were expected, was {found.dtype}")
    return found.astype(np.int64).reshape(-1)


def read_ubjson(content: bytes) -> Any:
    """The value that begins here, whatever follows it, arrays as numpy's; raises ModelInvalid."""
    try:
        return _Reader(content).value(0)
    except (IndexError, ValueError, struct.error, UnicodeDecodeError, OverflowError) as error:
        raise ModelInvalid(f"the file is cut short or no UBJSON: {error}") from error


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def value(self, depth: int) -> Any:
        return self._of_kind(self._take(1), depth)

    def _take(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._content):
            raise ValueError(f"{size} bytes are needed at {self._at} of {len(self._content)}")
        self._at += size
        return self._content[self._at - size : self._at]

    def _peek(self) -> bytes:
        return self._content[self._at : self._at + 1]

    def _of_kind(self, kind: bytes, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} levels")
        if kind in _NUMBERS:
            dtype = np.dtype(_NUMBERS[kind])
            return np.frombuffer(self._take(dtype.itemsize), dtype)[0].item()
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        match kind:
            case b"S":
                return self._text()
            case b"C":
                return self._take(1).decode()
            case b"{":
                return self._object(depth + 1)
            case b"[":
                return self._array(depth + 1)
        raise ValueError(f"unknown type {kind!r} at {self._at}")

    def _text(self) -> str:
        return self._take(self._size()).decode()

    def _size(self) -> int:
        size = self._of_kind(self._take(1), MAX_DEPTH)
        if type(size) is not int:
            raise ValueError(f"a size is no whole number at {self._at}")
        return size

    def _object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self._peek() != b"}":
            name = self._text()
            if name in found:  # of which XGBoost takes the first
                raise ValueError(f"{name!r} is there twice in an object")
            found[name] = self.value(depth)
        self._take(1)
        return found

    def _array(self, depth: int) -> Any:
        if self._peek() == b"$":
            self._take(1)
            kind = self._take(1)
            if kind not in _NUMBERS:
                raise ValueError(f"an array of unknown type {kind!r} at {self._at}")
            dtype = np.dtype(_NUMBERS[kind])
            if self._take(1) != b"#":
                raise ValueError(f"an array has no count at {self._at}")
            count = self._size()
            return np.frombuffer(self._take(count * dtype.itemsize), dtype)
        if self._peek() == b"#":
            self._take(1)
            return [self.value(depth) for _ in range(self._size())]
        found = []
        while self._peek() != b"]":
            found.append(self.value(depth))
        self._take(1)
        return found


_MAX_CLASSES = 2**16
"""Each takes memory in every row of a prediction."""
_CATEGORICAL = 1
"""Bit of LightGBM's `decision_type`."""
_END = "\nend of trees"
_PRINTED = bytes(range(0x20, 0x7F)) + b"\r\n"
_INNER = (
    "split_feature", "split_gain", "threshold", "decision_type", "left_child", "right_child",
    "internal_value", "internal_weight", "internal_count",
)  # fmt: skip
_LEAVES = ("leaf_value", "leaf_weight", "leaf_count")
"""LightGBM's fields with a number per inner node, and per leaf."""


def check_lightgbm(text: str) -> None:
    """Raise ModelInvalid if a tree in LightGBM's text is unsound.

    LightGBM reads its trees in threads, where an error ends the whole process.
    """
    if text.count("\nparameters:") != text.count("\nend of parameters\n"):
        # The library reads on behind the end of the file.
        raise ModelInvalid("the file is cut short: its parameters have no end")
    trees, end, _ = text.partition(_END)
    if not end:
        raise ModelInvalid("the file is cut short: it has no line 'end of trees'")
    head, *blocks = trees.split("\nTree=")
    if "".join(blocks).encode().translate(None, _PRINTED):
        # Python would divide lines and numbers at characters where the library does not.
        raise ModelInvalid("its trees hold characters other than printed ASCII and ends of lines")
    try:
        of_head = _fields(head)
        _check_sizes([_number(each) for each in of_head["tree_sizes"].split()], trees, len(blocks))
        _check_classes(of_head, len(blocks))
        features = _number(of_head["max_feature_idx"]) + 1
        for number, block in enumerate(blocks):
            _check_block(number, _fields(block), features)
    except (KeyError, ValueError, OverflowError) as error:
        raise ModelInvalid(f"its trees cannot be read: {error!r}") from error
    if not blocks:
        raise ModelInvalid("it holds no tree")


def _check_classes(head: Mapping[str, str], trees: int) -> None:
    """LightGBM has room for `num_class` results of a row, and writes one per tree of a round."""
    classes, per_round = _number(head["num_class"]), _number(head["num_tree_per_iteration"])
    if not 0 < classes == per_round <= _MAX_CLASSES or trees % per_round:
        raise ModelInvalid(
            f"its head names {classes} classes and {per_round} trees per round for {trees} trees;"
            f" as many of both are allowed, up to {_MAX_CLASSES}"
        )
    objective = head.get("objective", "")
    named = [each for each in objective.split() if each.startswith("num_class:")]
    if any(int(each.partition(":")[2]) != classes for each in named):
        # The objective turns that many results into probabilities.
        raise ModelInvalid(f"its objective is {objective!r}, its head names {classes} classes")


def _check_sizes(sizes: Sequence[int], trees: str, count: int) -> None:
    """LightGBM finds its trees by the sizes that the head names."""
    at = trees.find("\nTree=") + 1
    if len(sizes) != count:
        raise ModelInvalid(f"its head names {len(sizes)} trees, it holds {count}")
    for number, size in enumerate(sizes):
        if not trees.startswith(f"Tree={number}\n", at):
            raise ModelInvalid(f"tree {number} is not where its head says")
        at += size
    if not len(trees) <= at <= len(trees) + len(_END):
        raise ModelInvalid("its head names other sizes of trees than it holds")


def _fields(block: str) -> dict[str, str]:
    pairs = [line.partition("=") for line in re.split(r"[\r\n]", block) if "=" in line]
    fields = {key: value for key, _, value in pairs}
    if len(fields) != len(pairs):
        raise ValueError("a field is there twice")  # of which the library may take the other
    return fields


def _number(text: str) -> int:
    """A whole number as the library reads it: Python also takes `1_0` and digits of any script."""
    if "_" in text or not text.isascii():
        raise ValueError(f"{text!r} is no whole number")
    return int(text)


def _check_block(number: int, fields: Mapping[str, str], features: int) -> None:
    if any("_" in value for value in fields.values()):
        raise ModelInvalid(f"tree {number} has numbers with '_', at which the library ends them")
    leaves = int(fields["num_leaves"])
    if fields.get("is_linear", "0") != "0":
        raise ModelInvalid("linear trees are not read; train without linear_tree, or use ONNX")
    if leaves < 1 or len(fields["leaf_value"].split()) != leaves:
        raise ModelInvalid(f"tree {number} must have {leaves} leaves")
    if leaves == 1:
        np.asarray(fields["leaf_value"].split(), np.float64)
        return
    inner = leaves - 1
    for names, count in ((_INNER, inner), (_LEAVES, leaves)):
        for name in names:
            values = np.asarray(fields[name].split(), np.float64)
            if len(values) != count:
                raise ModelInvalid(f"{name} of tree {number} must have {count} values")
    left, right, split, kinds = (
        _integers(fields[name], inner, f"{name} of tree {number}")
        for name in ("left_child", "right_child", "split_feature", "decision_type")
    )
    numbers = np.arange(inner)
    is_sound = all(
        # A leaf is ~index; an inner child has a higher number than its parent.
        bool((((side > numbers) & (side < inner)) | ((side < 0) & (~side < leaves))).all())
        for side in (left, right)
    ) and bool(((split >= 0) & (split < features)).all())
    if not is_sound:
        raise ModelInvalid(f"tree {number} names nodes or features that it does not have")
    _check_categories(number, fields, (kinds & _CATEGORICAL).astype(bool))


def _check_categories(
    number: int, fields: Mapping[str, str], is_categorical: npt.NDArray[np.bool_]
) -> None:
    count = int(fields.get("num_cat", 0))
    if not count and not is_categorical.any():
        return
    bounds = _integers(fields["cat_boundaries"], count + 1, f"cat_boundaries of tree {number}")
    values = fields["cat_threshold"].split()
    chosen = np.asarray([float(each) for each in fields["threshold"].split()])[is_categorical]
    is_sound = (
        bounds[0] == 0
        and bool((np.diff(bounds) >= 0).all())
        and bounds[-1] == len(values)
        and bool(((chosen >= 0) & (chosen < count)).all())
    )
    if not is_sound:
        raise ModelInvalid(f"tree {number} names categories that it does not have")


def _integers(text: str, count: int, what: str) -> npt.NDArray[np.int64]:
    values: Sequence[str] = text.split()
    if len(values) != count:
        raise ModelInvalid(f"{what} must have {count} values, has {len(values)}")
    return np.asarray(values, np.int64)
