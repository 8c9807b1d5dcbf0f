"""Functions of a trace mapped to models: round robin, a fixed number for each model, or Zipf.

Sources: Zhang et al. 2025, section 8 (round robin); Blinowski et al. 2024, section 5.4, after
Clockwork (a fixed number of functions per model, not the same for all).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import pyarrow as pa
from pydantic import BeforeValidator, Field, model_validator

from load.traces.batches import DEFAULT_TENANT, NameColumn, constant, replaced
from load.traces.name_columns import Functions
from load.traces.parameters import CountList, Name, NameList, Parameters
from load.traces.popularity import zipf_shares

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from load.schema import Trace
    from load.traces.seeds import Seed


def _names_or_count(text: object) -> object:
    """`20` means model-0 to model-19; anything else is a list of names."""
    if isinstance(text, str) and text.isdigit():
        if not 1 <= int(text) <= 1_000_000:
            raise ValueError("a number of models from 1 to 1000000, or names as in 'a/b'")
        return tuple(f"model-{index}" for index in range(int(text)))
    return tuple(text.split("/")) if isinstance(text, str) else text


class MapParameters(Parameters):
    """`value` is a number of models, or their names with slashes between them."""

    value: Annotated[NameList, BeforeValidator(_names_or_count)]
    by: Literal["round-robin", "fixed", "zipf"] = "round-robin"
    functions: CountList | None = None
    """With `by=fixed`: how many functions each model gets, one number for all or one each."""
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
    """Every function's arrivals under the model it is mapped to; those of unmapped ones dropped.

    Functions count in the order of their first arrival. All models are of one tenant.
    """
    functions = Functions()
    models = NameColumn(given.value)
    assign = _rule(given, seed)
    chosen = np.zeros(0, np.int32)
    for batch in trace:
        own = functions.of(batch)
        if len(functions) > len(chosen):
            names = functions.names()
            fresh = [assign(index, names[index]) for index in range(len(chosen), len(names))]
            chosen = np.concatenate([chosen, np.array(fresh, np.int32)])
        model = chosen[own]
        kept = batch.filter(pa.array(model >= 0))
        if kept.num_rows:
            named = replaced(kept, "model", models.column(model[model >= 0]))
            yield replaced(named, "tenant", constant(given.tenant, kept.num_rows))


def _rule(given: MapParameters, seed: Seed) -> Callable[[int, str], int]:
    """A model for the function of this number and name; -1 for none."""
    models = len(given.value)
    match given.by:
        case "round-robin":
            return lambda index, _: index % models
        case "fixed":
            ends = _ends(given.functions or (1,), models)
            return lambda index, _: _owner(ends, index)
        case "zipf":
            reach = np.cumsum(zipf_shares(models, given.zipf))
            return lambda _, name: _drawn(reach, seed.of(name).rng().random())


def _ends(functions: tuple[int, ...], models: int) -> NDArray[np.int64]:
    each = functions if len(functions) == models else functions * models
    ends: NDArray[np.int64] = np.cumsum(np.array(each, np.int64))
    return ends


def _owner(ends: NDArray[np.int64], index: int) -> int:
    return int(np.searchsorted(ends, index, side="right")) if index < ends[-1] else -1


def _drawn(reach: NDArray[np.float64], draw: float) -> int:
    return min(int(np.searchsorted(reach, draw, side="right")), len(reach) - 1)
