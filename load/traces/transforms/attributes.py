"""Attributes set for all arrivals: tenant, model, input and output size, deadline.

A deadline is the same for all, or follows from the model's latency. Source of the second rule: the
simulator of Blinowski et al. 2024, where a model's deadline is twice its latency plus a time
between 0.5 and 1 s, drawn once per model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np
import pyarrow as pa
from pydantic import BeforeValidator, Field, model_validator

from load.errors import UnknownFormat, UnknownModel
from load.traces.batches import constant_column, with_column
from load.traces.formats.compressed import matching_files
from load.traces.formats.tables import read_header
from load.traces.parameters import DurationRange, NotNegative, Parameters, PositiveS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from load.schema import Trace
    from load.traces.parameters import Value
    from load.traces.seeds import Seed


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
    def _latency_is_known(self) -> DeadlineParameters:
        given = (self.latency is not None) + (self.latencies is not None)
        if given != (1 if self.value is None else 0):
            raise ValueError(
                "should be a duration, or latency with either latency=… or latencies=FILE"
            )
        return self


def set_deadline(trace: Trace, given: DeadlineParameters, seed: Seed) -> Iterator[pa.RecordBatch]:
    """Every arrival with a deadline. Raises UnknownModel for a model without a latency."""
    latencies = None if given.latencies is None else read_latencies(given.latencies)

    def deadline_s(model: str) -> float:
        if given.value is not None:
            return given.value
        latency_s = given.latency or 0.0 if latencies is None else latencies.get(model)
        if latency_s is None:
            examples = "/".join(list(latencies or ())[:2])
            raise UnknownModel(
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
        raise UnknownFormat(f"{path} lacks the columns {', '.join(sorted(missing))}")
    latencies: dict[str, float] = {}
    for block in table.blocks(["model", "latency_s"]):
        models, latencies_s = block.names("model").to_pylist(), block.numbers("latency_s")
        for index, (model, latency_s) in enumerate(zip(models, latencies_s, strict=True)):
            if model in latencies:
                raise block.error(index, f"model {model!r} occurs twice; keep one")
            latencies[model] = float(latency_s)
    return latencies
