"""Prewarming on a real pod: a compressed slice under each policy, beside its simulation.

One value of each policy's parameter; the parts are in `prewarm`, `live` above all.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from load.experiments.errors import ExperimentError
from load.experiments.experiment import Experiment, Result, Table
from load.experiments.prewarm.live import PACE, MemoryHeld, Slice, simulated, times_of
from load.experiments.prewarm.runs import OURS
from load.experiments.prewarming import FILE, trace_file

if TYPE_CHECKING:
    from load.experiments.experiment import Cell, Settings
    from load.experiments.prewarm.live import MeasuredTimes
    from load.report.run import Run

_VALUES: Final = {OURS: 2.0, "keep-alive": 10.0, "greedy-dual": 3.0, "hybrid-histogram": 40.0}
"""Of each policy's parameter, see `runs.PARAMETERS`."""
_HOURS: Final = (358.0, 361.0)
_QUICK_HOURS: Final = (360.0, 360.3)


def run(settings: Settings) -> Result:
    """Every policy live and simulated."""
    if settings.live is None:
        raise ExperimentError("the experiment prewarming-live has no simulated part: --live")
    piece = Slice(trace_file(settings), *(_QUICK_HOURS if settings.is_quick else _HOURS))
    with TemporaryDirectory() as aside:
        folder = settings.out or Path(aside)
        played: list[Run] = []
        for policy, value in _VALUES.items():
            settings.progress(len(played), len(_VALUES), policy)
            output = folder / f"{policy}.parquet"
            played.append(settings.live.prewarming(piece, policy, value, output))
    times = times_of(played)
    rows = tuple(
        _row(policy, value, _held(found), simulated(piece, policy, value, times))
        for (policy, value), found in zip(_VALUES.items(), played, strict=True)
    )
    table = Table(
        "A compressed slice, live and simulated",
        ("policy", "value", "requests", "cold starts: live", "cold starts: simulated",
         "idle model-hours: live", "idle model-hours: simulated", "failed: live"),
        rows,
    )  # fmt: skip
    return Result((table,), tuple(_notes(piece, times)))


def _row(policy: str, value: float, live: MemoryHeld, simulation: MemoryHeld) -> tuple[Cell, ...]:
    return (
        policy, value, live.requests, live.cold, simulation.cold,
        live.idle_model_h, simulation.idle_model_h, live.failed,
    )  # fmt: skip


def _held(found: Run) -> MemoryHeld:
    byte_s = found.wasted_memory_byte_s
    idle_h = None if byte_s is None else byte_s * PACE / found.metadata["model_bytes"] / 3600
    failed = found.requests - int(found.is_ok.sum())
    return MemoryHeld(found.requests, int(found.is_cold.sum()), failed, idle_h)


def _notes(piece: Slice, times: MeasuredTimes) -> list[str]:
    loads = ", ".join(
        f"{seconds / PACE:.3f} s from {tier}" for tier, seconds in times.load_s.items()
    )
    return [
        f"{FILE}, hours {piece.first_h:g} to {piece.last_h:g}, {PACE:g} times as fast, "
        f"{len(piece.models())} models; nothing held and nothing counted at the start",
        f"live medians: loads {loads}; inference {times.infer_s / PACE:.3f} s",
        "idle model-hours are the trace's; the simulation has the live medians",
    ]


EXPERIMENT: Final = Experiment(
    "prewarming-live",
    "A compressed slice of prewarming on a real pod, beside its simulation",
    run,
    has_live_part=True,
)
