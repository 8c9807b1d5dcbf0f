"""Deadlines by rule: the same for all, or from what a model's inference takes.

Source of the second: the simulator of Blinowski et al. 2024, where a model's deadline is twice its
latency plus a time between 0.5 and 1 s, drawn once per model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np
import pyarrow as pa
from pydantic import BeforeValidator, Field, model_validator

from load.errors import InvalidTrace, UnknownFormat, UnknownModel
from load.traces.batches import replaced
from load.traces.formats.blocks import names, numbers
from load.traces.formats.compressed import files
from load.traces.formats.tables import blocks, look_at
from load.traces.parameters import DurationRange, NotNegative, Parameters, PositiveS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from load.schema import Trace
    from load.traces.seeds import Seed


def _rule(text: object) -> object:
    return None if text == "latency" else text


class DeadlineParameters(Parameters):
    """`value` is a duration for all, or `latency` for the rule by model."""

    value: Annotated[PositiveS | None, BeforeValidator(_rule)]
    latency: PositiveS | None = None
    """Of every model, or"""
    latencies: str | None = None
    """a file with the columns `model` and `latency_s`."""
    factor: NotNegative = 2.0
    slack: DurationRange = Field(default=(0.5, 1.0))

    @model_validator(mode="after")
    def _latency_is_known(self) -> DeadlineParameters:
        given = (self.latency is not None) + (self.latencies is not None)
        if given != (1 if self.value is None else 0):
            raise ValueError(
                "should be a duration, or latency with either latency=… or latencies=FILE"
            )
        if self.slack[1] < self.slack[0]:
            raise ValueError("should have slack=FROM:TO with FROM not above TO")
        return self


def deadlines(trace: Trace, given: DeadlineParameters, seed: Seed) -> Iterator[pa.RecordBatch]:
    """Every arrival with a deadline. Raises UnknownModel for a model without a latency."""
    table = None if given.latencies is None else read_latencies(given.latencies)
    for batch in trace:
        if given.value is not None:
            yield replaced(batch, "deadline_s", pa.array(np.full(batch.num_rows, given.value)))
            continue
        models = batch.column("model")
        used = np.unique(models.indices.to_numpy())
        by_code = np.full(len(models.dictionary), np.nan)
        for code in used.tolist():
            name = models.dictionary[code].as_py()
            latency_s = given.latency if table is None else _latency(table, name, given)
            by_code[code] = model_deadline_s(
                latency_s or 0.0, factor=given.factor, slack_s=given.slack, seed=seed.of(name)
            )
        yield replaced(batch, "deadline_s", pa.array(by_code[models.indices.to_numpy()]))


def model_deadline_s(
    latency_s: float, *, factor: float, slack_s: tuple[float, float], seed: Seed
) -> float:
    """Factor x latency + uniform(slack): the same for a model whenever it is asked for."""
    return factor * latency_s + float(seed.rng().uniform(*slack_s))


def read_latencies(path: str) -> dict[str, float]:
    """Seconds by model. Raises TraceError for a file that is not such a table."""
    [found] = files(path)[:1]
    table = look_at(found)
    if missing := {"model", "latency_s"}.difference(table.columns):
        raise UnknownFormat(f"{path} lacks the columns {', '.join(sorted(missing))}")
    latencies: dict[str, float] = {}
    for block in blocks(table, ["model", "latency_s"]):
        rows = zip(names(block, "model").to_pylist(), numbers(block, "latency_s"), strict=True)
        for row, (model, latency_s) in enumerate(rows, start=block.first_row):
            if model in latencies:
                raise InvalidTrace(path, row, f"model {model!r} is there twice; keep one")
            latencies[model] = float(latency_s)
    return latencies


def _latency(table: dict[str, float], model: str, given: DeadlineParameters) -> float:
    if model not in table:
        raise UnknownModel(
            f"deadline: {given.latencies} has no latency of model {model!r}; add a row, or map the "
            f"trace to the models it has, as in |map={'/'.join(list(table)[:2])}"
        )
    return table[model]
