"""Checks of the demo's measurements against its expectations. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from load.experiments.liu.runs import latencies_s, mean_s, percentile_s
from load.experiments.liu.scenarios import (
    FIXED_POLICIES,
    LIU_REDUCTION_RATIO,
    TWO_LOADS_RATIO,
    MachineTimes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load.experiments.liu.runs import SimpleRun, WinRun

AUTO_TOLERANCE_RATIO = 0.05
AUTO_TOLERANCE_S = 0.15
"""Noise of a busy machine on a makespan of about a second; added to the 5 %."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """A property that the demo must show, and the measurement (`seen`)."""

    text: str
    is_met: bool
    seen: str


def check_simple(random: Sequence[SimpleRun], colocation: Sequence[SimpleRun]) -> list[Expectation]:
    """Section 6.2: one cold start, and Liu's gain in mean latency or more."""
    counts = [run.cold_starts for run in colocation]
    before_s, after_s = mean_s(latencies_s(random)), mean_s(latencies_s(colocation))
    gain = 1 - after_s / before_s
    return [
        Expectation(
            "6.2: exactly one cold start under colocation",
            all(count == 1 for count in counts),
            f"{counts} against {[run.cold_starts for run in random]} under random",
        ),
        Expectation(
            f"6.2: mean latency lower by Liu's {LIU_REDUCTION_RATIO:.1%} or more",
            gain >= LIU_REDUCTION_RATIO,
            f"{gain:.1%}: {before_s:.2f} s to {after_s:.2f} s",
        ),
    ]


def observed_times(runs: Sequence[WinRun]) -> MachineTimes:
    """Load and inference time of one request, from runs with two concurrent requests."""
    answers = [answer for run in runs for answer in run.answers]
    loads_s = [answer.stages_s.get("load", 0.0) for answer in answers if answer.is_cold]
    infers_s = [answer.stages_s.get("infer", 0.0) for answer in answers]
    return MachineTimes(
        load_s=max(loads_s, default=0.0) / TWO_LOADS_RATIO, infer_s=percentile_s(infers_s, 0.5)
    )


def keep_faster(first: Sequence[WinRun], second: Sequence[WinRun]) -> list[WinRun]:
    """The faster of two runs per policy, as a busy machine only adds time.

    Returns the second runs if the two have different sleeps and cannot be compared.
    """
    if first[0].sleep_s != second[0].sleep_s:
        return list(second)
    return [min(pair, key=lambda run: run.concurrent_s) for pair in zip(first, second, strict=True)]


def check_win(runs: Sequence[WinRun]) -> list[Expectation]:
    """Section 6.4: the scenario's policy is the fastest fixed one, and `auto` is as fast."""
    scenario = runs[0].scenario
    by_policy = {run.policy: run.concurrent_s for run in runs}
    fixed = {policy: by_policy[policy] for policy in FIXED_POLICIES}
    best = min(fixed, key=lambda policy: (fixed[policy], policy))
    limit_s = fixed[best] * (1 + AUTO_TOLERANCE_RATIO) + AUTO_TOLERANCE_S
    return [
        Expectation(
            f"{scenario.section}: {scenario.winner} wins",
            best == scenario.winner,
            ", ".join(f"{policy} {seconds:.2f} s" for policy, seconds in fixed.items()),
        ),
        Expectation(
            f"{scenario.section}: auto is with the winner "
            f"(within {AUTO_TOLERANCE_RATIO:.0%} and {AUTO_TOLERANCE_S:g} s)",
            by_policy["auto"] <= limit_s,
            f"auto {by_policy['auto']:.2f} s, {best} {fixed[best]:.2f} s",
        ),
    ]
