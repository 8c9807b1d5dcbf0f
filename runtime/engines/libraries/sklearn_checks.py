"""Checks of scikit-learn's trees, which index their nodes without checks of their own.

skops reads a `Tree` as it is written. A node that names a child or a feature that does not exist
would make `predict` read foreign memory or never end, so such a file is refused here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.errors import ModelInvalid

if TYPE_CHECKING:
    from collections.abc import Iterator

LEAF = -1


def check_trees(estimator: Any) -> None:
    """Raise ModelInvalid if any tree of a model is unsound."""
    for owner in _owners(estimator):
        tree = owner.tree_
        if tree.n_features != owner.n_features_in_:
            raise ModelInvalid(
                f"a tree of the model has {tree.n_features} features, its"
                f" {type(owner).__name__} {owner.n_features_in_}"
            )
        _check_nodes(tree)


def _check_nodes(tree: Any) -> None:
    count = tree.node_count
    numbers = np.arange(count)
    left, right = tree.children_left, tree.children_right
    is_leaf = left == LEAF
    inner = ~is_leaf
    # Children have higher numbers than their parents, so every path ends.
    is_sound = (
        count > 0
        and bool((right[is_leaf] == LEAF).all())
        and all(
            bool((side[inner] > numbers[inner]).all() and (side[inner] < count).all())
            for side in (left, right)
        )
        and bool((tree.feature[inner] >= 0).all())
        and bool((tree.feature[inner] < tree.n_features).all())
    )
    if not is_sound:
        raise ModelInvalid("a tree of the model names nodes or features that it does not have")


def _owners(root: Any) -> Iterator[Any]:
    """All objects of a model that hold a tree, whose features equal those of their ensemble."""
    seen: set[int] = set()
    waiting: list[tuple[Any, int | None]] = [(root, None)]
    while waiting:
        each, features = waiting.pop()
        if id(each) in seen or isinstance(each, (str, bytes, int, float, type(None))):
            continue
        seen.add(id(each))
        if isinstance(each, np.ndarray):
            waiting += [(item, features) for item in each.flat] if each.dtype == object else []
        elif isinstance(each, dict):
            waiting += [(item, features) for item in each.values()]
        elif isinstance(each, (list, tuple, set)):
            waiting += [(item, features) for item in each]
        elif hasattr(each, "__dict__"):
            if hasattr(each, "tree_"):
                _check_equal(features, each)
                yield each
            inner = _ensemble_features(each)
            waiting += [(item, inner) for item in vars(each).values()]


def _ensemble_features(each: Any) -> int | None:
    """The features that an ensemble checks once for all of its trees."""
    is_ensemble = hasattr(each, "estimators_") and not hasattr(each, "estimators_features_")
    return getattr(each, "n_features_in_", None) if is_ensemble else None


def _check_equal(features: int | None, owner: Any) -> None:
    if features is not None and owner.n_features_in_ != features:
        raise ModelInvalid(
            f"a tree of the model has {owner.n_features_in_} features, its ensemble {features}"
        )
