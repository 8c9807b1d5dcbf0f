"""The experiment prewarming: cold starts against idle memory, for each loading policy.

Each policy runs with several values of its parameter; real arrivals (GenTD26), simulated cluster.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from research.experiments.harness.axes import rows_of_axes
from research.experiments.harness.experiment import (
    Experiment,
    ExperimentError,
    Result,
    Settings,
    Table,
)
from research.experiments.harness.parallel_map import parallel_map
from research.experiments.prewarm import forecast_cache
from research.experiments.prewarm.runs import (
    BASELINES,
    PARAMETERS,
    PREDICTIVE,
    VALUES,
    PrewarmResult,
    PrewarmTask,
    simulate,
)
from research.experiments.prewarm.scenario import ReplayWindow
from research.report.style import COLOURS, DPI, MARKERS, legend_below, log_ticks, styled

FILE: Final = "gentd26_per_minute.csv.gz"
_HOURS: Final = (14 * 24, 16 * 24)
"""Forecasts' constants were tuned on days 5 to 14, the weight of recency on days 19 to 23."""
_QUICK_HOURS: Final = (72, 78)
_QUICK_VALUES: Final = 3


@dataclass(frozen=True, slots=True)
class AtEqualMemory:
    """One run of `predictive`, and the baselines at the same memory; None: out of their range."""

    idle_model_h: float
    cold: float
    """Share of requests with a cold start."""
    p75: float
    baselines_cold: Mapping[str, float | None]
    baselines_p75: Mapping[str, float | None]

    @property
    def is_fewer(self) -> bool:
        """True if there are fewer cold starts than with every baseline in range."""
        return all(each is None or self.cold < each for each in self.baselines_cold.values())

    @property
    def p75_ratio(self) -> float | None:
        """`p75` divided by the best baseline's; None if no baseline is in range."""
        known = [each for each in self.baselines_p75.values() if each is not None]
        return self.p75 / min(known) if known and min(known) > 0 else None


def at_equal_memory(results: Sequence[PrewarmResult]) -> list[AtEqualMemory]:
    """Each run of `predictive` with at least one baseline in range, by memory."""
    own = sorted(
        (each for each in results if each.policy == PREDICTIVE), key=lambda each: each.idle_model_h
    )
    found = [
        AtEqualMemory(
            each.idle_model_h,
            each.cold_share,
            each.p75,
            {
                name: _interpolated(results, name, each, lambda one: one.cold_share)
                for name in BASELINES
            },
            {name: _interpolated(results, name, each, lambda one: one.p75) for name in BASELINES},
        )
        for each in own
    ]
    return [each for each in found if any(one is not None for one in each.baselines_cold.values())]


def _interpolated(
    results: Sequence[PrewarmResult],
    policy: str,
    own: PrewarmResult,
    figure: Callable[[PrewarmResult], float],
) -> float | None:
    """A baseline's figure at the memory of `own`, interpolated over the logarithm of memory."""
    curve = sorted(
        (max(each.idle_model_h, 1e-9), figure(each)) for each in results if each.policy == policy
    )
    if not curve or not curve[0][0] <= own.idle_model_h <= curve[-1][0]:
        return None
    memory, figures = zip(*curve, strict=True)
    return float(np.interp(np.log(own.idle_model_h), np.log(memory), figures))


def run(settings: Settings) -> Result:
    """All runs, the comparison at equal memory, and the plot."""
    window = ReplayWindow(trace_file(settings), *(_QUICK_HOURS if settings.is_quick else _HOURS))
    results = _simulate_all(window, settings)
    equal = at_equal_memory(results)
    images = (draw(results, settings.out),) if settings.out is not None else ()
    tables = (_runs_table(results), _equal_memory_table(equal))
    return Result(tables, tuple(_notes(window, results, equal)), images)


def trace_file(settings: Settings) -> str:
    """The path of the trace. Raises ExperimentError."""
    file = settings.file(FILE)
    if file is None:
        raise ExperimentError(
            f"the experiments on prewarming replay {FILE}; PILOTLIGHT_DATA must name its folder, "
            f"was {settings.data or 'not set'}"
        )
    return str(file)


def _simulate_all(window: ReplayWindow, settings: Settings) -> list[PrewarmResult]:
    models = tuple(window.models())
    with tempfile.TemporaryDirectory() as folder:
        forecasts = Path(folder) / "forecasts.npz"

        def on_tick(done: int, total: int) -> None:
            if done % 100 == 0 or done == total:
                settings.progress(done, total, f"forecasts: {done} of {total} ticks")

        forecast_cache.record(window, list(models), forecasts, on_tick)
        tasks = [
            PrewarmTask(policy, value, window, models, forecasts)
            for policy in (PREDICTIVE, *BASELINES)
            for value in _selected(VALUES[policy], settings)
        ]
        return parallel_map(simulate, tasks, settings, what="runs")


def _selected(values: Sequence[float], settings: Settings) -> Sequence[float]:
    if not settings.is_quick:
        return values
    last = len(values) - 1
    return [values[at * last // (_QUICK_VALUES - 1)] for at in range(_QUICK_VALUES)]


def _runs_table(results: Sequence[PrewarmResult]) -> Table:
    rows = tuple(
        (
            each.policy,
            PARAMETERS[each.policy],
            each.value,
            each.idle_model_h,
            each.cold,
            100 * each.cold_share,
            100 * each.p75,
            each.preloads,
        )
        for each in results
    )
    return Table(
        f"Every policy over its parameter, simulated: {results[0].requests:,} requests",
        (
            "policy",
            "parameter",
            "value",
            "idle model-hours",
            "cold starts",
            "cold %",
            "p75 of models, cold %",
            "loads ahead",
        ),
        rows,
    )


def _equal_memory_table(equal: Sequence[AtEqualMemory]) -> Table:
    rows = tuple(
        (
            each.idle_model_h,
            100 * each.cold,
            *(_percent(each.baselines_cold[name]) for name in BASELINES),
            100 * each.p75,
            *(_percent(each.baselines_p75[name]) for name in BASELINES),
            each.p75_ratio,
        )
        for each in equal
    )
    return Table(
        f"At the memory of each run of {PREDICTIVE}: cold starts in %",
        (
            "idle model-hours",
            PREDICTIVE,
            *BASELINES,
            f"p75: {PREDICTIVE}",
            *(f"p75: {name}" for name in BASELINES),
            "p75 over the best",
        ),
        rows,
    )


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _notes(
    window: ReplayWindow, results: Sequence[PrewarmResult], equal: Sequence[AtEqualMemory]
) -> list[str]:
    fewer = sum(each.is_fewer for each in equal)
    ratios = [each.p75_ratio for each in equal if each.p75_ratio is not None]
    failed = sum(each.failed for each in results)
    return [
        f"arrivals of {FILE}, hours {window.first_h} to {window.last_h}, counted from the start; "
        "simulated cluster, seed 1",
        f"target: fewer cold starts than every baseline at equal memory: at {fewer} of "
        f"{len(equal)} points",
        "target: p75 over models at most half of the best baseline's: at "
        f"{sum(each <= 0.5 for each in ratios)} of {len(ratios)} points",
        f"failed requests: {failed}",
        "baselines between their runs: interpolated over the logarithm of memory; -: out of range",
    ]


def draw(results: Sequence[PrewarmResult], folder: Path) -> Path:
    """`pareto.png`: idle memory-time against cold starts, a line per policy."""
    path = folder / "pareto.png"
    with styled():
        figure, (above, below) = rows_of_axes([3.2, 3.2])
        for number, policy in enumerate((PREDICTIVE, *BASELINES)):
            curve = sorted(
                (each.idle_model_h, each.cold_share, each.p75)
                for each in results
                if each.policy == policy
            )
            memory, cold, p75 = zip(*curve, strict=True)
            above.plot(memory, cold, color=COLOURS[number], marker=MARKERS[number], label=policy)
            below.plot(memory, p75, color=COLOURS[number], marker=MARKERS[number])
        above.set_title("Simulated: idle memory against cold starts")
        above.set_ylabel("Cold, all requests")
        below.set_ylabel("Cold, 75th percentile of models")
        below.set_xlabel("Memory held idle (models x hours)")
        for axes in (above, below):
            axes.set_xscale("log")
            log_ticks(axes.xaxis)
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        legend_below(above)
        figure.savefig(path, format="png", dpi=DPI)
    return path


EXPERIMENT: Final = Experiment(
    "prewarming",
    "Cold starts against idle memory: predictive, keep-alive, greedy-dual, hybrid-histogram",
    run,
)
