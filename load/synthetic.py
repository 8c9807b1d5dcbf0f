"""Synthetic traces by name: a rate over time, a distribution of gaps, a popularity of models.

The times of a renewal process of rate 1 are mapped through the inverse of the rate's integral. This
gives any rate and keeps the burstiness (Cinlar 1975, section 4.7, for Poisson).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Final, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, model_validator

from load.traces.batches import BATCH_ROWS, DEFAULT_TENANT, NameColumn, arrival_batch
from load.traces.parameters import (
    Burstiness,
    Count,
    DurationS,
    Name,
    NameList,
    Parameters,
    Popularity,
    PositiveS,
    Rate,
    Seed,
    unit_gaps,
)

_MAX_STEPS: Final = 1_000_000
_STEPS_PER_PERIOD: Final = 288
"""Steps of a diurnal rate: 5 minutes each with a period of a day."""


class GeneratorParameters(Parameters):
    """Parameters of every generator. Models are `model-0`, `model-1`, …, or `names`."""

    rate: Rate
    """Arrivals per second."""
    duration: PositiveS
    models: Count = 1
    names: NameList | None = None
    zipf: Annotated[float, Field(ge=0, le=10)] = 0.0
    drift: PositiveS | None = None
    """How often a random model becomes the most popular one."""
    tenants: Count = 1
    """Models are dealt to `tenant-0`, `tenant-1`, … in turn; a single tenant is `tenant`."""
    tenant: Name = DEFAULT_TENANT

    @model_validator(mode="after")
    def _names_or_number(self) -> Self:
        if self.names is not None and self.models not in {1, len(self.names)}:
            raise ValueError("should have either models=… or names=…, or as many names as models")
        return self

    @model_validator(mode="after")
    def _changes_are_few(self) -> Self:
        """Reject too many changes of rate or popularity: each takes time even without arrivals."""
        for name, every_s in self.changes().items():
            if self.duration / every_s > _MAX_STEPS:
                raise ValueError(f"should have {name} of at least a millionth of duration")
        return self

    def changes(self) -> dict[str, float]:
        """Intervals between changes of rate or popularity, in seconds, by parameter name."""
        return {} if self.drift is None else {"drift": self.drift}

    def steps(self, rng: np.random.Generator) -> Iterator[RateStep]:
        """The rate over time, in order, over the whole duration."""
        yield RateStep(0.0, self.duration, self.rate)


class Poisson(GeneratorParameters):
    """Exponential gaps: a coefficient of variation of 1."""


class Bursty(GeneratorParameters):
    """Gamma distributed gaps, exponential by default."""

    cv: Burstiness = 1.0


class Gamma(Bursty):
    """Gamma distributed gaps at a constant rate."""

    cv: Burstiness


class Diurnal(Bursty):
    """A sine around `rate`, lowest at the start: rate x (1 - amplitude x cos(2 pi t / period)).

    The rate is constant in each step, and equal to the exact mean of the sine.
    """

    amplitude: Annotated[float, Field(ge=0, le=1)] = 0.8
    period: PositiveS = 86_400.0

    def changes(self) -> dict[str, float]:
        return super().changes() | {"period": self.period}

    def steps(self, rng: np.random.Generator) -> Iterator[RateStep]:
        turn = 2.0 * math.pi / self.period
        step_s = self.period / _STEPS_PER_PERIOD
        count = math.ceil(self.duration / step_s)
        for index in range(count):
            start_s = index * step_s
            is_last = index == count - 1
            end_s = self.duration if is_last else min((index + 1) * step_s, self.duration)
            if end_s > start_s:
                sines = math.sin(turn * end_s) - math.sin(turn * start_s)
                mean = sines / (turn * (end_s - start_s))
                yield RateStep(start_s, end_s, max(self.rate * (1.0 - self.amplitude * mean), 0.0))


class Spike(Bursty):
    """A constant rate, except `peak` for `length` from `at` on."""

    rate: Annotated[float, Field(ge=0, le=10_000_000)]
    peak: Rate
    at: DurationS
    length: PositiveS

    def steps(self, rng: np.random.Generator) -> Iterator[RateStep]:
        start_s, end_s = (min(each, self.duration) for each in (self.at, self.at + self.length))
        for step in (
            RateStep(0.0, start_s, self.rate),
            RateStep(start_s, end_s, self.peak),
            RateStep(end_s, self.duration, self.rate),
        ):
            if step.end_s > step.start_s:
                yield step


class OnOff(Bursty):
    """`rate` while on, no arrivals while off; durations are exponential, with these means."""

    on: PositiveS
    off: PositiveS

    def changes(self) -> dict[str, float]:
        return super().changes() | {"on + off": self.on + self.off}

    def steps(self, rng: np.random.Generator) -> Iterator[RateStep]:
        start_s, is_on = 0.0, True
        while start_s < self.duration:
            mean_s = self.on if is_on else self.off
            end_s = min(start_s + rng.exponential(mean_s), self.duration)
            if end_s > start_s:
                yield RateStep(start_s, end_s, self.rate if is_on else 0.0)
            start_s, is_on = end_s, not is_on


GENERATORS: Final[dict[str, type[GeneratorParameters]]] = {
    "poisson": Poisson,
    "gamma": Gamma,
    "diurnal": Diurnal,
    "spike": Spike,
    "on-off": OnOff,
}
"""By the name that a trace specification uses."""


def generate(given: GeneratorParameters, seed: Seed) -> Iterator[pa.RecordBatch]:
    """The arrivals, with separate random streams for times, rates and models."""
    cv = given.cv if isinstance(given, Bursty) else 1.0
    model_names = given.names or [f"model-{index}" for index in range(given.models)]
    tenant_names = [given.tenant]
    if given.tenants > 1:
        tenant_names = [f"tenant-{index}" for index in range(given.tenants)]
    models, tenants = NameColumn(model_names), NameColumn(tenant_names)
    popularity = Popularity(
        models=len(model_names),
        exponent=given.zipf,
        drift_s=given.drift,
        rng=seed.derive("models").rng(),
    )
    steps = given.steps(seed.derive("rates").rng())
    for at_s in arrival_times(steps, cv=cv, rng=seed.derive("times").rng()):
        model = popularity.models_at(at_s)
        tenant = (model % given.tenants).astype(np.int32)
        yield arrival_batch(at_s, model=models.column(model), tenant=tenants.column(tenant))


@dataclass(frozen=True, slots=True)
class RateStep:
    """A constant rate from `start_s` until `end_s`."""

    start_s: float
    end_s: float
    rate_rps: float


def arrival_times(
    steps: Iterable[RateStep], *, cv: float, rng: np.random.Generator
) -> Iterator[NDArray[np.float64]]:
    """Sorted times in seconds, in parts, until the steps end."""
    expected = 0.0
    clock = _unit_renewals(cv, rng)
    pending = next(clock)
    for step in steps:
        reached = expected + (step.end_s - step.start_s) * step.rate_rps
        while step.rate_rps > 0.0:
            ready = int(np.searchsorted(pending, reached, side="left"))
            if ready:
                at_s = step.start_s + (pending[:ready] - expected) / step.rate_rps
                yield np.clip(at_s, step.start_s, np.nextafter(step.end_s, -np.inf))
            pending = pending[ready:]
            if len(pending):
                break
            pending = next(clock)
        expected = reached


def _unit_renewals(cv: float, rng: np.random.Generator) -> Iterator[NDArray[np.float64]]:
    """Times of a renewal process of rate 1, in endless batches."""
    start = 0.0
    while True:
        times = start + np.cumsum(unit_gaps(BATCH_ROWS, cv, rng))
        start = float(times[-1])
        yield times
