"""What arrivals ask for, set for all: the tenant, the model, the sizes of input and output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import pyarrow as pa
from pydantic import BeforeValidator, Field, model_validator

from load.traces.batches import constant, replaced
from load.traces.parameters import Name, Parameters

if TYPE_CHECKING:
    from collections.abc import Iterator

    from load.schema import Trace
    from load.traces.seeds import Seed


def _bounds(text: object) -> object:
    """`64`, or `64:512`."""
    if not isinstance(text, str):
        return text
    if text.count(":") > 1:
        raise ValueError("a whole number, or LEAST:MOST")
    least, _, most = text.partition(":")
    return least, most or least


_Size = Annotated[int, Field(ge=0, le=2**31 - 1)]


class NameParameters(Parameters):
    """One name."""

    value: Name


class SizeParameters(Parameters):
    """One size, or the least and the most."""

    value: Annotated[tuple[_Size, _Size], BeforeValidator(_bounds)]

    @model_validator(mode="after")
    def _in_order(self) -> SizeParameters:
        if self.value[1] < self.value[0]:
            raise ValueError("should be LEAST:MOST with LEAST not above MOST")
        return self


def tenant(trace: Trace, given: NameParameters, _: Seed) -> Iterator[pa.RecordBatch]:
    """All arrivals of one tenant."""
    return _named(trace, "tenant", given.value)


def model(trace: Trace, given: NameParameters, _: Seed) -> Iterator[pa.RecordBatch]:
    """All arrivals for one model."""
    return _named(trace, "model", given.value)


def input_size(trace: Trace, given: SizeParameters, seed: Seed) -> Iterator[pa.RecordBatch]:
    """Inputs of `value` items or tokens, uniform between two."""
    return _sized(trace, "input_size", given, seed)


def output_size(trace: Trace, given: SizeParameters, seed: Seed) -> Iterator[pa.RecordBatch]:
    """Outputs of `value` tokens, uniform between two."""
    return _sized(trace, "output_size", given, seed)


def _named(trace: Trace, column: str, name: str) -> Iterator[pa.RecordBatch]:
    for batch in trace:
        yield replaced(batch, column, constant(name, batch.num_rows))


def _sized(
    trace: Trace, column: str, given: SizeParameters, seed: Seed
) -> Iterator[pa.RecordBatch]:
    rng = seed.rng()
    least, most = given.value
    for batch in trace:
        sizes = rng.integers(least, most, size=batch.num_rows, endpoint=True)
        yield replaced(batch, column, pa.array(sizes, pa.int64()))
