"""Maps the functions of a trace to models: round robin, a fixed number per model, or Zipf.

A function is a pair of tenant and model of the original trace.
Sources: Zhang et al. 2025, section 8 (round robin); Blinowski et al. 2024, section 5.4, after
Clockwork (a fixed number of functions per model, which may differ between models).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import pyarrow as pa
from pydantic import BeforeValidator, Field, model_validator

from load.traces.batches import DEFAULT_TENANT, constant_column, full_names, with_column
from load.traces.name_columns import NameColumn
from load.traces.parameters import CountList, Name, NameList, Parameters
from load.traces.popularity import zipf_shares

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from load.schema import Trace
    from load.traces.seeds import Seed


def _names_or_count(text: object) -> object:
    """`20` means model-0 to model-19; any other text is a list of names."""
    if isinstance(text, str) and text.isdigit():
        if not 1 <= int(text) <= 1_000_000:
            raise ValueError("a number of models from 1 to 1000000, or names as in 'a/b'")
        return tuple(f"model-{index}" for index in range(int(text)))
    return tuple(text.split("/")) if isinstance(text, str) else text


class MapParameters(Parameters):
    """`value` is a number of models, or their names separated by slashes."""

    value: Annotated[NameList, BeforeValidator(_names_or_count)]
    by: Literal["round-robin", "fixed", "zipf"] = "round-robin"
    functions: CountList | None = None
    """With `by=fixed`: the number of functions per model, one number for all or one each."""
    zipf: Annotated[float, Field(ge=0, le=10)] = 0.9
    """With `by=zipf`: the exponent."""
    tenant: Name = DEFAULT_TENANT

    @model_validator(mode="after")
    def _functions_belong_to_fixed(self) -> MapParameters:
        if (self.functions is not None) != (self.by == "fixed"):
            raise ValueError("should have both by=fixed and functions=…, or neither")
        if self.functions is not None and len(self.functions) not in {1, len(self.value)}:
            raise ValueError("should have one number in functions, or one for each model")
        return self


def map_functions(trace: Trace, given: MapParameters, seed: Seed) -> Iterator[pa.RecordBatch]:
    """Set each arrival's model to that of its function; arrivals of unmapped functions are dropped.

    Functions are numbered in order of their first arrival. All models belong to one tenant.
    """
    functions = NameColumn()
    models = NameColumn(given.value)
    model_of = _assignment(given, seed)
    model_by_function: list[int] = []
    for batch in trace:
        function = functions.codes(full_names(batch))
        if len(functions) > len(model_by_function):
            names = functions.names()
            new = range(len(model_by_function), len(names))
            model_by_function += [model_of(index, names[index]) for index in new]
        model = np.array(model_by_function, np.int32)[function]
        kept = batch.filter(pa.array(model >= 0))
        if kept.num_rows:
            mapped = with_column(kept, "model", models.column(model[model >= 0]))
            yield with_column(mapped, "tenant", constant_column(given.tenant, kept.num_rows))


def _assignment(given: MapParameters, seed: Seed) -> Callable[[int, str], int]:
    """From a function's number and name to the index of its model; -1 if it is not mapped."""
    models = len(given.value)
    match given.by:
        case "round-robin":
            return lambda index, _: index % models
        case "fixed":
            each = given.functions or (1,)
            ends = np.cumsum(each if len(each) == models else each * models)
            return lambda index, _: (
                int(np.searchsorted(ends, index, side="right")) if index < ends[-1] else -1
            )
        case "zipf":
            cumulative = np.cumsum(zipf_shares(models, given.zipf))
            return lambda _, name: min(
                int(np.searchsorted(cumulative, seed.derive(name).rng().random(), side="right")),
                models - 1,
            )
