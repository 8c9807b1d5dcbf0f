"""Attributes of arrivals set: tenant, model, sizes, deadline; functions mapped to models.

A deadline is the same for all, or follows from the model's latency. Source of the second rule: the
simulator of Blinowski et al. 2024, where a model's deadline is twice its latency plus a time
between 0.5 and 1 s, drawn once per model. A function is a pair of tenant and model of the original
trace. Sources of maps: Zhang et al. 2025, section 8 (round robin); Blinowski et al. 2024, section
5.4, after Clockwork (a fixed number of functions per model, which may differ between models).
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
from pydantic import BeforeValidator, Field, model_validator

from load.errors import TraceError
from load.schema import Trace
from load.traces.batches import DEFAULT_TENANT, NameColumn, constant_column, full_names, with_column
from load.traces.formats.tables import matching_files, read_header
from load.traces.parameters import (
    CountList,
    DurationRange,
    Name,
    NameList,
    NotNegative,
    Parameters,
    PositiveS,
    Value,
)
from load.traces.seeds import Seed, zipf_shares


def set_name(column: str, trace: Trace, given: Value[str], _: Seed) -> Iterator[pa.RecordBatch]:
    """One tenant or one model for all arrivals."""
    for batch in trace:
        yield with_column(batch, column, constant_column(given.value, batch.num_rows))


def set_size(
    column: str, trace: Trace, given: Value[tuple[int, int]], seed: Seed
) -> Iterator[pa.RecordBatch]:
    """Sizes in items or tokens, uniform between two bounds."""
    rng = seed.rng()
    for batch in trace:
        sizes = rng.integers(*given.value, size=batch.num_rows, endpoint=True)
        yield with_column(batch, column, pa.array(sizes, pa.int64()))


class DeadlineParameters(Parameters):
    """`value` is a duration for all arrivals, or `latency` for the rule by model."""

    value: Annotated[
        PositiveS | None, BeforeValidator(lambda text: None if text == "latency" else text)
    ]
    latency: PositiveS | None = None
    """Latency of every model."""
    latencies: str | None = None
    """Instead of `latency`: a file with the columns `model` and `latency_s`."""
    factor: NotNegative = 2.0
    slack: DurationRange = Field(default=(0.5, 1.0))

    @model_validator(mode="after")
    def _latency_is_known(self) -> "DeadlineParameters":
        given = (self.latency is not None) + (self.latencies is not None)
        if given != (1 if self.value is None else 0):
            raise ValueError(
                "should be a duration, or latency with either latency=… or latencies=FILE"
            )
        return self


def set_deadline(trace: Trace, given: DeadlineParameters, seed: Seed) -> Iterator[pa.RecordBatch]:
    """Every arrival with a deadline. Raises TraceError for a model without a latency."""
    latencies = None if given.latencies is None else read_latencies(given.latencies)

    def deadline_s(model: str) -> float:
        if given.value is not None:
            return given.value
        latency_s = given.latency or 0.0 if latencies is None else latencies.get(model)
        if latency_s is None:
            examples = "/".join(list(latencies or ())[:2])
            raise TraceError(
                f"deadline: {given.latencies} has no latency of model {model!r}; add a row, or map "
                f"the trace to models of that file, as in |map={examples}"
            )
        return model_deadline_s(
            latency_s, factor=given.factor, slack_s=given.slack, seed=seed.derive(model)
        )

    for batch in trace:
        models = batch.column("model")
        codes = models.indices.to_numpy()
        by_code = np.full(len(models.dictionary), np.nan)
        for code in np.unique(codes).tolist():
            by_code[code] = deadline_s(models.dictionary[code].as_py())
        yield with_column(batch, "deadline_s", pa.array(by_code[codes]))


def model_deadline_s(
    latency_s: float, *, factor: float, slack_s: tuple[float, float], seed: Seed
) -> float:
    """Factor x latency + uniform(slack); the same seed gives the same deadline."""
    return factor * latency_s + float(seed.rng().uniform(*slack_s))


def read_latencies(path: str) -> dict[str, float]:
    """Seconds by model. Raises TraceError for a file that is not such a table."""
    table = read_header(matching_files(path)[0])
    if missing := {"model", "latency_s"}.difference(table.columns):
        raise TraceError(f"{path} lacks the columns {', '.join(sorted(missing))}")
    latencies: dict[str, float] = {}
    for block in table.blocks(["model", "latency_s"]):
        models, latencies_s = block.names("model").to_pylist(), block.numbers("latency_s")
        for index, (model, latency_s) in enumerate(zip(models, latencies_s, strict=True)):
            if model in latencies:
                raise block.error(index, f"model {model!r} occurs twice; keep one")
            latencies[model] = float(latency_s)
    return latencies


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
    def _functions_belong_to_fixed(self) -> "MapParameters":
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
