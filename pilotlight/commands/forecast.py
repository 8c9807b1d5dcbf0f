"""`forecast backtest`: how good forecasts of arrivals would have been on a trace."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from autoscaler.forecasting.arrival_patterns import ArrivalPattern
from autoscaler.forecasting.backtest import Backtest, BacktestParams, backtest
from autoscaler.forecasting.errors import ForecastingError
from autoscaler.forecasting.history import MINUTES_OF_DAY, ForecastHorizon
from autoscaler.forecasting.methods import METHODS
from autoscaler.forecasting.minute_csv import MinuteTrace, read_minutes
from autoscaler.forecasting.scores import scores
from pilotlight.commands.options import JsonOption
from pilotlight.errors import InvalidInput
from pilotlight.output import Output, progress_bar

_DATA = "PILOTLIGHT_DATA"
_HELD_OUT = 0.6
_ALL = "all"
_NOTHING = (
    "there is nothing to score at {} origins: windows must end within the trace (give an earlier "
    "--from-day) and a model must have had an arrival before (give a later one)"
)

app = typer.Typer(no_args_is_help=True, help="Forecasts of arrivals per model.")


@app.callback()
def _forecast() -> None:
    """Forecasts of arrivals per model."""


@app.command("backtest")
def run(
    *,
    trace: Annotated[
        Path,
        typer.Option(
            help="CSV of minute,model,count (or a column per model), .gz too: a path, or a name in "
            f"the folder that {_DATA} names."
        ),
    ],
    method: Annotated[
        list[str] | None, typer.Option(help="Repeat for several; without it, all.")
    ] = None,
    from_day: Annotated[
        float | None,
        typer.Option(min=0, show_default="60 % of the trace", help="Day of the first forecast."),
    ] = None,
    to_day: Annotated[
        float | None, typer.Option(min=0, show_default="the end", help="Forecast before this day.")
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Minutes from one origin to the next.")] = 17,
    window: Annotated[
        list[int], typer.Option(min=1, max=1440, help="Minutes ahead; repeat for several.")
    ] = [1, 10, 60],  # noqa: B006 - typer copies it
    quantile: Annotated[
        list[float], typer.Option(help="Quantiles to forecast; repeat for several.")
    ] = [0.5, 0.9, 0.99],  # noqa: B006 - typer copies it
    json_: JsonOption = False,
) -> None:
    """Forecast from many points of a trace by each method, and score what came."""
    output = Output(json_)
    names = _methods(method)
    try:
        question = ForecastHorizon(tuple(60.0 * each for each in window), tuple(quantile))
        read = read_minutes(_located(trace))
        params = _params(read, from_day, to_day, every)
        with progress_bar("back-test") as progress:
            done = backtest(
                read.counts,
                {name: METHODS[name] for name in names},
                question,
                params,
                lambda at, of: progress(at, of, f"{at} of {of} origins") if at % 50 == 0 else None,
            )
    except ForecastingError as error:
        raise InvalidInput([str(error)]) from error
    results = _results(done, names, question)
    if not results:
        raise InvalidInput([_NOTHING.format(done.origins)])
    _show(output, results, question)
    if json_:
        output.result(
            {
                "trace": trace.name,
                "models": len(read.models),
                "minutes": int(read.counts.shape[1]),
                "origins": done.origins,
                "params": asdict(params),
                "quantiles": list(question.probabilities),
                "results": results,
            }
        )


def _methods(wanted: Sequence[str] | None) -> list[str]:
    unknown = [name for name in wanted or [] if name not in METHODS]
    if unknown:
        known = ", ".join(METHODS)
        raise InvalidInput([f"--method must be one of {known}, was {name!r}" for name in unknown])
    return list(dict.fromkeys(wanted or METHODS))


def _located(trace: Path) -> Path:
    folder = os.environ.get(_DATA)
    if trace.exists():
        return trace
    if folder and (Path(folder) / trace).exists():
        return Path(folder) / trace
    where = f"here or in {_DATA}={folder}" if folder else f"here, and {_DATA} is not set"
    raise InvalidInput([f"--trace must be a file; there is no {str(trace)!r} {where}"])


def _params(
    read: MinuteTrace, from_day: float | None, to_day: float | None, every: int
) -> BacktestParams:
    minutes = read.counts.shape[1]
    first = minutes * _HELD_OUT if from_day is None else from_day * MINUTES_OF_DAY
    last = minutes if to_day is None else min(minutes, to_day * MINUTES_OF_DAY)
    return BacktestParams(max(int(first), 1), int(last), every)


def _results(
    done: Backtest, names: Sequence[str], question: ForecastHorizon
) -> list[dict[str, Any]]:
    groups = {
        _ALL: tuple(ArrivalPattern),
        **{kind.name.lower(): (kind,) for kind in ArrivalPattern},
    }
    results = []
    for label, kinds in groups.items():
        for at, window_s in enumerate(question.windows_s):
            for name in names:
                total = done.of(name, kinds)
                if total is not None:
                    scored = asdict(scores(total, at, question.probabilities))
                    results.append({"type": label, "window_s": window_s, "method": name, **scored})
    return results


def _show(output: Output, results: Sequence[dict[str, Any]], question: ForecastHorizon) -> None:
    columns = ["TYPE", "WINDOW", "METHOD", "FORECASTS", "MAE"]
    columns += [f"PINBALL {each:g}" for each in question.probabilities]
    columns += [f"OFF {each:g}" for each in question.probabilities]
    columns += ["BRIER", "P", "ARRIVED"]
    output.table(columns, [_row(each) for each in results])
    output.line(
        "PINBALL, MAE, BRIER: less is better. OFF: share of outcomes by which a quantile is"
    )
    output.line("missed. P against ARRIVED: mean P(arrival) and how often something came.")


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
