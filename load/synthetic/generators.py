"""Generated traces by name: a rate over time, gaps of a law, and models by popularity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import numpy as np
from pydantic import Field, model_validator

from load.synthetic import rates
from load.synthetic.renewal import arrival_times
from load.traces.batches import DEFAULT_TENANT, NameColumn, arrivals
from load.traces.parameters import (
    Burstiness,
    Count,
    DurationS,
    Name,
    NameList,
    Parameters,
    PositiveS,
    Rate,
)
from load.traces.popularity import Popularity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from load.synthetic.rates import Step
    from load.traces.seeds import Seed


_MOST_CHANGES: Final = 1_000_000

_P = TypeVar("_P", bound="GeneratorParameters")


def _few_changes(given: _P, every_s: float, name: str) -> _P:
    """Steps that are not arrivals cost time as well: refuse what would never end."""
    if given.duration / every_s > _MOST_CHANGES:
        raise ValueError(f"should have {name} of at least a millionth of duration")
    return given


class GeneratorParameters(Parameters):
    """What every generator takes. Models are `model-0`, `model-1`, …, or `names`."""

    rate: Rate
    """Arrivals per second."""
    duration: PositiveS
    models: Count = 1
    names: NameList | None = None
    zipf: Annotated[float, Field(ge=0, le=10)] = 0.0
    drift: PositiveS | None = None
    """How often a model at random becomes the most popular one."""
    tenants: Count = 1
    """Models are dealt to `tenant-0`, `tenant-1`, … in turn; one tenant is `default`."""
    tenant: Name = DEFAULT_TENANT

    @model_validator(mode="after")
    def _names_or_number(self) -> GeneratorParameters:
        if self.names is not None and self.models not in {1, len(self.names)}:
            raise ValueError("should have either models=… or names=…, or as many names as models")
        return self

    @model_validator(mode="after")
    def _drift_is_slow(self) -> GeneratorParameters:
        return self if self.drift is None else _few_changes(self, self.drift, "drift")

    def model_names(self) -> tuple[str, ...]:
        """The models, the most popular one first."""
        return self.names or tuple(f"model-{index}" for index in range(self.models))


class Poisson(GeneratorParameters):
    """Exponential gaps: a coefficient of variation of 1."""


class Bursty(GeneratorParameters):
    """Gamma gaps, exponential by default."""

    cv: Burstiness = 1.0


class Gamma(Bursty):
    """Gamma gaps at a steady rate."""

    cv: Burstiness


class Diurnal(Bursty):
    """A day's rise and fall; `rate` is the mean over whole periods."""

    amplitude: Annotated[float, Field(ge=0, le=1)] = 0.8
    period: PositiveS = 86_400.0

    @model_validator(mode="after")
    def _periods_are_few(self) -> Diurnal:
        return _few_changes(self, self.period, "period")


class Spike(Bursty):
    """One burst on a steady rate, for `length` from `at` on."""

    rate: Annotated[float, Field(ge=0, le=10_000_000)]
    peak: Rate
    at: DurationS
    length: PositiveS


class OnOff(Bursty):
    """Busy and idle times of exponential length; `rate` is that of busy ones."""

    on: PositiveS
    off: PositiveS

    @model_validator(mode="after")
    def _changes_are_few(self) -> OnOff:
        return _few_changes(self, self.on + self.off, "on + off")


@dataclass(frozen=True, slots=True)
class Generator:
    """One generator: its parameters, and the rate over time that they mean."""

    parameters: type[GeneratorParameters]
    steps: Callable[[Any, np.random.Generator], Iterable[Step]]


def _steady(given: GeneratorParameters, _: np.random.Generator) -> Iterator[Step]:
    return rates.steady(rate_rps=given.rate, duration_s=given.duration)


def _diurnal(given: Diurnal, _: np.random.Generator) -> Iterator[Step]:
    return rates.diurnal(
        rate_rps=given.rate,
        amplitude=given.amplitude,
        period_s=given.period,
        duration_s=given.duration,
    )


def _spike(given: Spike, _: np.random.Generator) -> Iterator[Step]:
    return rates.spike(
        rate_rps=given.rate,
        peak_rps=given.peak,
        at_s=given.at,
        length_s=given.length,
        duration_s=given.duration,
    )


def _on_off(given: OnOff, rng: np.random.Generator) -> Iterator[Step]:
    return rates.on_off(
        rate_rps=given.rate, on_s=given.on, off_s=given.off, duration_s=given.duration, rng=rng
    )


GENERATORS: Final = {
    "poisson": Generator(Poisson, _steady),
    "gamma": Generator(Gamma, _steady),
    "diurnal": Generator(Diurnal, _diurnal),
    "spike": Generator(Spike, _spike),
    "on-off": Generator(OnOff, _on_off),
}
"""By the name that is used in a trace's name."""


def generate(
    generator: Generator, given: GeneratorParameters, seed: Seed
) -> Iterator[pa.RecordBatch]:
    """The arrivals; times, rates and models are drawn apart, so none changes with another."""
    cv = given.cv if isinstance(given, Bursty) else 1.0
    steps = generator.steps(given, seed.of("rates").rng())
    names = given.model_names()
    models = NameColumn(names)
    tenants = NameColumn(_tenants(given))
    popularity = Popularity(
        models=len(names), exponent=given.zipf, drift_s=given.drift, rng=seed.of("models").rng()
    )
    for at_s in arrival_times(steps, cv=cv, rng=seed.of("times").rng()):
        model = popularity.models_at(at_s)
        tenant = (model % given.tenants).astype(np.int32)
        yield arrivals(at_s, model=models.column(model), tenant=tenants.column(tenant))


def _tenants(given: GeneratorParameters) -> list[str]:
    if given.tenants == 1:
        return [given.tenant]
    return [f"tenant-{index}" for index in range(given.tenants)]
