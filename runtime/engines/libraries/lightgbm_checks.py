"""Checks of LightGBM's text files, which the library reads without checks of its own.

A node that names a child or feature that does not exist would make a prediction read foreign
memory, and a circle would never end, so files with such nodes are refused here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from runtime.errors import ModelInvalid

if TYPE_CHECKING:
    import numpy.typing as npt

_MAX_CLASSES = 2**16
"""Each takes memory in every row of a prediction."""
_CATEGORICAL = 1
"""Bit of LightGBM's `decision_type`."""
_END = "\nend of trees"
_PRINTED = bytes(range(0x20, 0x7F)) + b"\r\n"
_INNER = (
    "split_feature",
    "split_gain",
    "threshold",
    "decision_type",
    "left_child",
    "right_child",
    "internal_value",
    "internal_weight",
    "internal_count",
)
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
