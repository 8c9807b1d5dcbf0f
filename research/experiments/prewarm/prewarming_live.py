"""The experiment prewarming-live: a compressed trace slice on a real pod and in simulation.

It compares the loading policies, each with one value of its parameter.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from load.report.run import Run
from research.experiments.harness.experiment import (
    Cell,
    Experiment,
    ExperimentError,
    Result,
    Settings,
    Table,
)
from research.experiments.prewarm.live_slice import (
    PACE,
    MeasuredTimes,
    MemoryHeld,
    TraceSlice,
    measured_times,
    simulate_slice,
)
from research.experiments.prewarm.prewarming import FILE, trace_file
from research.experiments.prewarm.runs import PREDICTIVE

_VALUES: Final = {PREDICTIVE: 2.0, "keep-alive": 10.0, "greedy-dual": 3.0, "hybrid-histogram": 40.0}
"""The value of each policy's parameter, in the units of `runs.PARAMETERS`."""
_HOURS: Final = (358.0, 361.0)
_QUICK_HOURS: Final = (360.0, 360.3)


def run(settings: Settings) -> Result:
    """Every policy live and simulated. Raises ExperimentError without a platform or the trace."""
    if settings.live is None:
        raise ExperimentError("the experiment prewarming-live has no simulated part: --live")
    trace_slice = TraceSlice(trace_file(settings), *(_QUICK_HOURS if settings.is_quick else _HOURS))
    with TemporaryDirectory() as temporary:
        folder = settings.out or Path(temporary)
        runs: list[Run] = []
        for policy, value in _VALUES.items():
            settings.progress(len(runs), len(_VALUES), policy)
            output = folder / f"{policy}.parquet"
            runs.append(settings.live.prewarming(trace_slice, policy, value, output))
            settings.keep("live: prewarming", {"policy": policy, "value": value}, str(output))
    times = measured_times(runs)
    rows = tuple(
        _row(policy, value, _live_result(found), simulate_slice(trace_slice, policy, value, times))
        for (policy, value), found in zip(_VALUES.items(), runs, strict=True)
    )
    table = Table(
        "A compressed slice, live and simulated",
        (
            "policy",
            "value",
            "requests",
            "cold starts: live",
            "cold starts: simulated",
            "idle model-hours: live",
            "idle model-hours: simulated",
            "failed: live",
        ),
        rows,
    )
    return Result((table,), tuple(_notes(trace_slice, times)))


def _row(policy: str, value: float, live: MemoryHeld, simulation: MemoryHeld) -> tuple[Cell, ...]:
    return (
        policy,
        value,
        live.requests,
        live.cold,
        simulation.cold,
        live.idle_model_h,
        simulation.idle_model_h,
        live.failed,
    )


def _live_result(run: Run) -> MemoryHeld:
    byte_s = run.wasted_memory_byte_s
    idle_h = None if byte_s is None else byte_s * PACE / run.metadata["model_bytes"] / 3600
    failed = run.requests - int(run.is_ok.sum())
    return MemoryHeld(run.requests, int(run.is_cold.sum()), failed, idle_h)


def _notes(trace_slice: TraceSlice, times: MeasuredTimes) -> list[str]:
    loads = ", ".join(
        f"{seconds / PACE:.3f} s from {tier}" for tier, seconds in times.load_s.items()
    )
    return [
        f"{FILE}, hours {trace_slice.first_h:g} to {trace_slice.last_h:g}, "
        f"{PACE:g} times as fast, {len(trace_slice.models())} models; "
        "no models loaded and no requests counted at the start",
        f"live medians: loads {loads}; inference {times.infer_s / PACE:.3f} s",
        "idle model-hours are the trace's; the simulation uses the live medians",
    ]


EXPERIMENT: Final = Experiment(
    "prewarming-live",
    "A compressed slice of prewarming, on a real pod and simulated",
    run,
    has_live_part=True,
)
