"""Cold starts against memory held idle: our loading policy and the field's.

Each over its parameter; real arrivals (GenTD26), simulated cluster. The parts are in `prewarm`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from load.experiments.errors import ExperimentError
from load.experiments.experiment import Experiment, Result, Settings, Table
from load.experiments.parallel_map import run_side_by_side
from load.experiments.prewarm import forecast_cache, plot
from load.experiments.prewarm.curves import at_equal_memory
from load.experiments.prewarm.runs import OURS, PARAMETERS, PEERS, VALUES, PrewarmTask, run_one
from load.experiments.prewarm.scenario import ReplayWindow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load.experiments.prewarm.curves import AtEqualMemory
    from load.experiments.prewarm.runs import PrewarmResult

FILE: Final = "gentd26_per_minute.csv.gz"
_HOURS: Final = (14 * 24, 16 * 24)
"""Constants of forecasts were chosen on days 5 to 14, the weight of recency on days 19 to 23."""
_QUICK_HOURS: Final = (72, 78)
_QUICK_VALUES: Final = 3


def run(settings: Settings) -> Result:
    """All runs, the comparison at equal memory, and the plot."""
    span = ReplayWindow(trace_file(settings), *(_QUICK_HOURS if settings.is_quick else _HOURS))
    outcomes = _outcomes(span, settings)
    equal = at_equal_memory(outcomes)
    images = (plot.draw(outcomes, settings.out),) if settings.out is not None else ()
    return Result(
        (_runs_table(outcomes), _equal_table(equal)), tuple(_notes(span, outcomes, equal)), images
    )


def trace_file(settings: Settings) -> str:
    """Where the trace is. Raises ExperimentError."""
    file = settings.file(FILE)
    if file is None:
        raise ExperimentError(
            f"the experiments on prewarming replay {FILE}; PILOTLIGHT_DATA must name the folder "
            f"that has it, was {settings.data or 'not set'}"
        )
    return str(file)


def _outcomes(span: ReplayWindow, settings: Settings) -> list[PrewarmResult]:
    models = tuple(span.models())
    with tempfile.TemporaryDirectory() as folder:
        forecasts = Path(folder) / "forecasts.npz"

        def tell(done: int, total: int) -> None:
            if done % 100 == 0 or done == total:
                settings.progress(done, total, f"forecasts: {done} of {total} ticks")

        forecast_cache.record(span, list(models), forecasts, tell)
        tasks = [
            PrewarmTask(policy, value, span, models, forecasts)
            for policy in (OURS, *PEERS)
            for value in _some(VALUES[policy], settings)
        ]
        return run_side_by_side(run_one, tasks, settings, what="runs")


def _some(values: Sequence[float], settings: Settings) -> Sequence[float]:
    if not settings.is_quick:
        return values
    last = len(values) - 1
    return [values[at * last // (_QUICK_VALUES - 1)] for at in range(_QUICK_VALUES)]


def _runs_table(outcomes: Sequence[PrewarmResult]) -> Table:
    rows = tuple(
        (each.policy, PARAMETERS[each.policy], each.value, each.idle_model_h, each.cold,
         100 * each.cold_share, 100 * each.p75, each.preloads)
        for each in outcomes
    )  # fmt: skip
    return Table(
        f"Every policy over its parameter, simulated: {outcomes[0].requests:,} requests",
        ("policy", "parameter", "value", "idle model-hours", "cold starts", "cold %",
         "p75 of models, cold %", "loads ahead"),
        rows,
    )  # fmt: skip


def _equal_table(equal: Sequence[AtEqualMemory]) -> Table:
    rows = tuple(
        (each.idle_model_h, 100 * each.cold, *(_percent(each.peers_cold[peer]) for peer in PEERS),
         100 * each.p75, *(_percent(each.peers_p75[peer]) for peer in PEERS), each.p75_ratio)
        for each in equal
    )  # fmt: skip
    return Table(
        f"At the memory of each run of {OURS}: cold starts in %",
        ("idle model-hours", OURS, *PEERS, f"p75: {OURS}", *(f"p75: {peer}" for peer in PEERS),
         "p75 over the best"),
        rows,
    )  # fmt: skip


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _notes(
    span: ReplayWindow, outcomes: Sequence[PrewarmResult], equal: Sequence[AtEqualMemory]
) -> list[str]:
    fewer = sum(each.is_fewer for each in equal)
    ratios = [each.p75_ratio for each in equal if each.p75_ratio is not None]
    failed = sum(each.failed for each in outcomes)
    return [
        f"arrivals of {FILE}, hours {span.first_h} to {span.last_h}, counted from the start; "
        "simulated cluster, seed 1",
        f"mark: fewer cold starts than every peer at equal memory: at {fewer} of {len(equal)} "
        "points",
        f"mark: p75 over models at most half of the best peer's: at "
        f"{sum(each <= 0.5 for each in ratios)} of {len(ratios)} points",
        f"requests that were not answered: {failed}",
        "peers between their runs: in proportion to the logarithm of memory; -: out of their reach",
    ]


EXPERIMENT: Final = Experiment(
    "prewarming",
    "Cold starts against idle memory: predictive, keep-alive, greedy-dual, hybrid-histogram",
    run,
)
