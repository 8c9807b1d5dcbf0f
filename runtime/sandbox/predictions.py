"""Compares an estimator's predictions before and after its conversion, on rows of examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import numpy as np

from runtime.engines.libraries.sklearn_model import known_values
from runtime.errors import ModelInvalid

RANDOM_ROWS: Final = 64
METHODS: Final = ("predict", "predict_proba")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Numbers are equal within `relative * |before| + absolute`; other values exactly."""

    relative: float
    absolute: float

    @property
    def text(self) -> str:
        return f"{self.relative:g} relative, {self.absolute:g} absolute"


@dataclass(frozen=True, slots=True)
class Converted:
    content: bytes
    """Of the file."""
    before: Mapping[str, Any]
    """The estimator's predictions of the examples, by its method."""
    after: Mapping[str, Any]
    """Those of the converted model."""
    tolerance: Tolerance


def library(name: str) -> Any:
    """A module that conversions need; raises ModelInvalid."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ModelInvalid(
            f"{name} cannot be imported ({error}): pip install 'pilotlight[convert]'"
        ) from error


def example_rows(estimator: Any, rows: list[Any] | None) -> Any:
    """An array, a list of texts, or a data frame for a model that knows its columns."""
    names = getattr(estimator, "feature_names_in_", None)
    found: Any
    if rows is None:
        count = getattr(estimator, "n_features_in_", None)
        if count is None:
            raise ModelInvalid(
                "the model does not say how many features it takes: give rows to compare with"
                " --rows FILE (a JSON list, as the instances of a V1 request)"
            )
        found = _random_rows(estimator, names, count)
    elif not rows or not isinstance(rows, list):
        raise ModelInvalid("the file of --rows must hold a JSON list of one row or more")
    elif isinstance(rows[0], dict):
        return library("pandas").DataFrame(rows)
    else:
        found = rows if isinstance(rows[0], str) else np.asarray(rows)
    if names is None:
        return found
    table = library("pandas").DataFrame(found)
    table.columns = names
    return table


def _random_rows(estimator: Any, names: Any, count: int) -> Any:
    """Normally distributed numbers, or for a column of categories some that the model knows."""
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal((RANDOM_ROWS, count))
    known = known_values(estimator, None if names is None else [*map(str, names)], count)
    if not known:
        return numbers
    table = library("pandas").DataFrame(numbers)
    for index, values in known.items():
        table[index] = rng.choice(values, RANDOM_ROWS)
    return table if names is not None else table.to_numpy()


def predictions_of(estimator: Any, examples: Any) -> dict[str, Any]:
    """By method; raises ModelInvalid if the estimator refuses the rows."""
    try:
        return {
            name: getattr(estimator, name)(examples) for name in METHODS if hasattr(estimator, name)
        }
    except (ValueError, TypeError) as error:
        raise ModelInvalid(
            f"the model refuses the rows to compare: {error}; give others with --rows FILE"
        ) from error


def differences(converted: Converted) -> list[str]:
    """How the predictions of each method differ, if they do."""
    found = []
    for method, before in converted.before.items():
        after = converted.after[method]
        if not isinstance(before, list):  # a list holds an array per output
            before, after = [before], [after]
        if len(before) != len(after):
            found.append(f"{method} gives {len(after)} outputs, not {len(before)}")
            continue
        texts = (
            _difference(np.asarray(one), np.asarray(other), converted.tolerance)
            for one, other in zip(before, after, strict=True)
        )
        found += [f"{method} {text}" for text in texts if text]
    return found


def _difference(before: Any, after: Any, tolerance: Tolerance) -> str | None:
    if before.ndim == 1 and after.shape == (len(before), 1):
        after = after[:, 0]  # a regressor of ONNX gives a column
    if before.shape != after.shape:
        return f"gives the shape {list(after.shape)}, not {list(before.shape)}"
    are_numbers = all(np.issubdtype(each.dtype, np.floating) for each in (before, after))
    if are_numbers:
        equal = np.isclose(
            after, before, rtol=tolerance.relative, atol=tolerance.absolute, equal_nan=True
        )
    else:
        equal = np.asarray(before == after, dtype=bool)
    if equal.all():
        return None
    rows = np.flatnonzero(~equal.reshape(len(equal), -1).all(axis=1))
    first = np.argwhere(~equal)[0]
    place = tuple(int(each) for each in first)
    return (
        f"differs in {len(rows)} of {len(equal)} rows (row {place[0]}:"
        f" {after[place]!s} instead of {before[place]!s}; numbers may differ by {tolerance.text})"
    )
