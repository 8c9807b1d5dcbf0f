"""`forecast backtest`: the error of arrival forecasts on a recorded trace.

The trace is CSV or CSV.gz: either `minute,model,count` without rows of no arrivals, or one column
per model (`minute,R1,R2,...`), where an empty cell is 0.
"""

import csv
import gzip
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer

from autoscaler.forecasting.history import (
    MINUTES_OF_DAY,
    ForecastHorizon,
    ForecastingError,
    Integers,
)
from autoscaler.forecasting.patterns import ArrivalPattern
from pilotlight.commands import flags
from pilotlight.errors import InvalidInput
from pilotlight.output import Output, progress_bar
from research.forecasting.backtest import Backtest, BacktestParams, backtest, scores
from research.forecasting.methods import METHODS

_DATA = "PILOTLIGHT_DATA"
_FIRST_ORIGIN_RATIO = 0.6
_ALL_PATTERNS = "all"

app = typer.Typer(name="forecast", no_args_is_help=True, help="Forecast arrivals per model.")


_MAX_CELLS: Final = 200_000_000


class BadArrivalTrace(ForecastingError):
    """A file that does not hold arrivals per minute."""


@dataclass(frozen=True, slots=True)
class MinuteTrace:
    models: tuple[str, ...]
    counts: Integers
    """(models, minutes), from minute 0 on."""


def read_minutes(path: Path) -> MinuteTrace:
    """Raises BadArrivalTrace with file and line."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            rows = list(_cells(csv.reader(file), path))
    except (OSError, UnicodeDecodeError, EOFError, csv.Error) as error:
        raise BadArrivalTrace(f"cannot read {path}: {error}") from error
    if not rows:
        raise BadArrivalTrace(f"{path} has no arrivals")
    models = tuple(sorted({model for _, model, _ in rows}))
    minutes = max(minute for minute, _, _ in rows) + 1
    if len(models) * minutes > _MAX_CELLS:
        raise BadArrivalTrace(
            f"{path}: models x minutes must be at most {_MAX_CELLS}, were {len(models)} x {minutes}"
        )
    places = {model: row for row, model in enumerate(models)}
    counts = np.zeros((len(models), minutes), dtype=np.uint32)
    at = np.array([(places[model], minute) for minute, model, _ in rows])
    np.add.at(counts, (at[:, 0], at[:, 1]), np.array([count for _, _, count in rows], np.uint32))
    return MinuteTrace(models=models, counts=counts)


def _cells(lines: Iterator[list[str]], path: Path) -> Iterator[tuple[int, str, int]]:
    header = next(lines, [])
    if not header or header[0] != "minute" or len(header) < 2:
        raise BadArrivalTrace(
            f"{path} must start with minute,model,count or minute,NAME,..., was {header}"
        )
    is_long = header == ["minute", "model", "count"]
    for number, line in enumerate(lines, start=2):
        if len(line) != len(header):
            raise BadArrivalTrace(f"{path}:{number} must have {len(header)} cells, had {len(line)}")
        where = f"{path}:{number}"
        minute = _whole(line[0], where, maximum=10_000_000)
        pairs: Sequence[tuple[str, str]] = (
            [(line[1], line[2])] if is_long else list(zip(header[1:], line[1:], strict=True))
        )
        for model, count in pairs:
            if count:
                yield minute, model, _whole(count, where, maximum=10**9)


def _whole(text: str, where: str, *, maximum: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value <= maximum:
        raise BadArrivalTrace(f"{where}: must be a whole number from 0 to {maximum}, was {text!r}")
    return value


@app.callback()
def _forecast() -> None:
    """Forecast arrivals per model."""  # a callback keeps `backtest` a verb of its own


@app.command("backtest")
def run_backtest(
    *,
    trace: Annotated[
        Path,
        typer.Option(
            help="CSV file with columns minute,model,count, or one column per model; .gz is read. "
            f"A path, or a name in the folder that {_DATA} names."
        ),
    ],
    method: Annotated[
        list[str] | None, typer.Option(help="Forecasting method. Repeat for several. Default: all.")
    ] = None,
    from_day: Annotated[
        float | None,
        typer.Option(
            min=0, show_default="60 % of the trace", help="Day of the trace of the first forecast."
        ),
    ] = None,
    to_day: Annotated[
        float | None,
        typer.Option(
            min=0, show_default="the end", help="Day of the trace at which forecasts end."
        ),
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Minutes between two forecasts.")] = 17,
    window: Annotated[
        list[int], typer.Option(min=1, max=1440, help="Horizon in minutes. Repeat for several.")
    ] = [1, 10, 60],  # noqa: B006 - typer copies it
    quantile: Annotated[
        list[float], typer.Option(help="Quantile to forecast. Repeat for several.")
    ] = [0.5, 0.9, 0.99],  # noqa: B006 - typer copies it
    json_: flags.Json = False,
) -> None:
    """Forecast from many origins in a trace with each method, and score the forecasts."""
    output = Output(json_)
    names = _methods(method)
    try:
        horizon = ForecastHorizon(tuple(60.0 * each for each in window), tuple(quantile))
        minutes = read_minutes(_find_trace(trace))
        params = _params(minutes, from_day, to_day, every)
        with progress_bar("back-test") as progress:
            done = backtest(
                minutes.counts,
                {name: METHODS[name] for name in names},
                horizon,
                params,
                lambda n, of: progress(n, of, f"{n} of {of} origins") if n % 50 == 0 else None,
            )
    except ForecastingError as error:
        raise InvalidInput([str(error)]) from error
    results = _results(done, names, horizon)
    if not results:
        raise InvalidInput(
            [
                f"no forecast can be scored at {done.origins} origins: windows must end within the "
                "trace (give an earlier --from-day), and a model must have an arrival before an "
                "origin (give a later --from-day)"
            ]
        )
    _print_table(output, results, horizon)
    if json_:
        output.result(
            {
                "trace": trace.name,
                "models": len(minutes.models),
                "minutes": int(minutes.counts.shape[1]),
                "origins": done.origins,
                "params": asdict(params),
                "quantiles": list(horizon.probabilities),
                "results": results,
            }
        )


def _methods(given: Sequence[str] | None) -> list[str]:
    unknown = [name for name in given or [] if name not in METHODS]
    if unknown:
        known = ", ".join(METHODS)
        raise InvalidInput([f"--method must be one of {known}, was {name!r}" for name in unknown])
    return list(dict.fromkeys(given or METHODS))


def _find_trace(trace: Path) -> Path:
    folder = os.environ.get(_DATA)
    if trace.exists():
        return trace
    if folder and (Path(folder) / trace).exists():
        return Path(folder) / trace
    where = f"here or in {_DATA}={folder}" if folder else f"here, and {_DATA} is not set"
    raise InvalidInput([f"--trace must be a file; there is no {str(trace)!r} {where}"])


def _params(
    trace: MinuteTrace, from_day: float | None, to_day: float | None, every: int
) -> BacktestParams:
    minutes = trace.counts.shape[1]
    first = minutes * _FIRST_ORIGIN_RATIO if from_day is None else from_day * MINUTES_OF_DAY
    last = minutes if to_day is None else min(minutes, to_day * MINUTES_OF_DAY)
    return BacktestParams(max(int(first), 1), int(last), every)


def _results(
    done: Backtest, names: Sequence[str], horizon: ForecastHorizon
) -> list[dict[str, Any]]:
    groups = {
        _ALL_PATTERNS: tuple(ArrivalPattern),
        **{each.name.lower(): (each,) for each in ArrivalPattern},
    }
    results = []
    for label, patterns in groups.items():
        for index, window_s in enumerate(horizon.windows_s):
            for name in names:
                total = done.total(name, patterns)
                if total is not None:
                    scored = asdict(scores(total, index, horizon.probabilities))
                    results.append({"type": label, "window_s": window_s, "method": name, **scored})
    return results


def _print_table(
    output: Output, results: Sequence[dict[str, Any]], horizon: ForecastHorizon
) -> None:
    columns = ["TYPE", "WINDOW", "METHOD", "FORECASTS", "MAE"]
    columns += [f"PINBALL {each:g}" for each in horizon.probabilities]
    columns += [f"OFF {each:g}" for each in horizon.probabilities]
    columns += ["BRIER", "P", "ARRIVED"]
    output.table(columns, [_row(each) for each in results])
    output.line(
        "PINBALL, MAE, BRIER: lower is better. OFF: distance of a quantile's probability from"
    )
    output.line(
        "the share of outcomes at or below it. P: mean forecast of P(arrival). ARRIVED: share"
    )
    output.line("of windows with an arrival.")


def _row(result: dict[str, Any]) -> list[str]:
    return [
        result["type"],
        f"{result['window_s'] / 60:g} min",
        result["method"],
        str(result["forecasts"]),
        f"{result['mae']:.4g}",
        *(f"{each:.4g}" for each in result["pinball"]),
        *(f"{each:.3f}" for each in result["miscalibration"]),
        f"{result['brier']:.4f}",
        f"{result['p_arrival']:.4f}",
        f"{result['arrived']:.4f}",
    ]
