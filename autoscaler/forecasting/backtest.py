"""Rolling origin: forecast from many points of a trace what came after each, and score it.

At an origin a method is given what `Counts` would hold then, and nothing later: the past is cut
before it is handed over. Only models with an arrival before the origin are forecast and scored.
Windows are whole minutes, since traces are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from autoscaler.forecasting.arrival_patterns import ArrivalPattern, PatternAssignment
from autoscaler.forecasting.errors import BadHorizon
from autoscaler.forecasting.fitting import Fit, fit
from autoscaler.forecasting.history import NEVER, Floats, ForecastHorizon, History, Integers
from autoscaler.forecasting.scores import ForecastTally, tally

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autoscaler.forecasting.methods import Method

_MINUTES = 2880
_TENS = 2016
_ACTIVE = 128


@dataclass(frozen=True, slots=True)
class BacktestParams:
    """From which minute to which, and how often."""

    first_minute: int
    last_minute: int
    """Origins lie before it; windows may end after it."""
    every_min: int = 17
    """Prime to an hour, so that all phases of hours are met."""
    refit_every: int = 4
    """Origins from one fit to the next."""

    def __post_init__(self) -> None:
        if not 0 < self.first_minute < self.last_minute:
            raise BadHorizon(
                "origins must go from a positive minute to a later one, "
                f"were {self.first_minute} to {self.last_minute}"
            )
        if self.every_min < 1 or self.refit_every < 1:
            raise BadHorizon(
                "every_min and refit_every must be positive, "
                f"were {self.every_min} and {self.refit_every}"
            )


@dataclass(slots=True)
class Backtest:
    """Sums of scores by method and type; the type is what `behaviour` said at the origin."""

    origins: int = 0
    tallies: dict[tuple[str, ArrivalPattern], ForecastTally] = field(default_factory=dict)

    def of(
        self, method: str, kinds: Sequence[ArrivalPattern] = tuple(ArrivalPattern)
    ) -> ForecastTally | None:
        """The sum over types; nothing where none of them occurred."""
        found = [self.tallies[method, kind] for kind in kinds if (method, kind) in self.tallies]
        total: ForecastTally | None = None
        for each in found:
            total = each if total is None else total + each
        return total


def history_at(counts: Integers, minute: int) -> History:
    """What `Counts` would hold at the beginning of a minute: nothing of it nor of what follows."""
    past = counts[:, :minute]
    models = past.shape[0]
    spans = past.shape[1] // 10
    whole = past[:, : spans * 10].reshape(models, spans, 10).sum(axis=2)
    active = np.full((models, _ACTIVE), NEVER, dtype=np.int64)
    since = np.full(models, minute, dtype=np.int64)
    for row in range(models):
        found = np.flatnonzero(past[row])
        if found.size:
            since[row] = found[0]
            last = found[-_ACTIVE:]
            active[row, _ACTIVE - last.size :] = last
    return History(
        origin_s=minute * 60.0,
        minutes=_last(past, _MINUTES),
        tens=_last(whole, _TENS),
        active=active,
        since_minute=since,
        recent=past[:, -1].astype(np.float64),
    )


def backtest(
    counts: Integers,
    methods: Mapping[str, Method],
    question: ForecastHorizon,
    params: BacktestParams,
    progress: Callable[[int, int], None] | None = None,
) -> Backtest:
    """Forecast from each origin by each method. `counts` (models, minutes)."""
    _check(counts, question)
    ends = [int(each // 60) for each in question.windows_s]
    last = min(params.last_minute, counts.shape[1] - max(ends) + 1)
    origins = range(params.first_minute, last, params.every_min)
    result, fitted = Backtest(), None
    behaviour: PatternAssignment | None = None
    for at, minute in enumerate(origins):
        history = history_at(counts, minute)
        if fitted is None or at % params.refit_every == 0:
            fitted = fit(history, behaviour)
            behaviour = fitted.behaviour
        seen = np.stack([counts[:, minute : minute + end].sum(axis=1) for end in ends], axis=1)
        _score(result, history, fitted, methods, question, seen.astype(np.float64))
        if progress:
            progress(at + 1, len(origins))
    return result


def _score(
    result: Backtest,
    history: History,
    fitted: Fit,
    methods: Mapping[str, Method],
    question: ForecastHorizon,
    seen: Floats,
) -> None:
    is_seen = history.active[:, -1] != NEVER
    result.origins += 1
    for name, method in methods.items():
        forecast = method(history, fitted, question)
        for kind in ArrivalPattern:
            rows = is_seen & (fitted.behaviour.kind == kind)
            if rows.any():
                each = tally(forecast, seen, question.probabilities, rows)
                former = result.tallies.get((name, kind))
                result.tallies[name, kind] = each if former is None else former + each


def _check(counts: Integers, question: ForecastHorizon) -> None:
    if any(each % 60 for each in question.windows_s):
        raise BadHorizon(
            f"windows over a trace per minute must be whole minutes, were {question.windows_s} s"
        )
    if counts.ndim != 2 or not counts.size:
        raise BadHorizon(f"counts must be models x minutes, were of shape {counts.shape}")


def _last(counts: Integers, bins: int) -> Integers:
    """The last bins, with zeros in front where there are fewer."""
    kept = counts[:, -bins:]
    return np.pad(kept, ((0, 0), (bins - kept.shape[1], 0)))
