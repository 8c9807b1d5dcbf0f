"""`forecast backtest`: the error of arrival forecasts on a recorded trace."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from autoscaler.forecasting.arrival_patterns import ArrivalPattern
from autoscaler.forecasting.history import MINUTES_OF_DAY, ForecastHorizon, ForecastingError
from pilotlight.commands import flags
from pilotlight.errors import InvalidInput
from pilotlight.output import Output, progress_bar
from research.forecasting.backtest import Backtest, BacktestParams, backtest
from research.forecasting.methods import METHODS
from research.forecasting.minute_csv import MinuteTrace, read_minutes
from research.forecasting.scores import scores

_DATA = "PILOTLIGHT_DATA"
_FIRST_ORIGIN_RATIO = 0.6
_ALL_PATTERNS = "all"

app = typer.Typer(name="forecast", no_args_is_help=True, help="Forecast arrivals per model.")


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
