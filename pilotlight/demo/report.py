"""The demo's tables and JSON document: measured figures beside those of the thesis."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pilotlight.demo.liu_runs import (
    LIU_SIMPLE,
    POLICIES,
    DemoScale,
    Expectation,
    SimpleRun,
    WinRun,
    latencies_s,
    mean_s,
    mean_stages_s,
    percentile_s,
)
from pilotlight.demo.session import Invocation
from pilotlight.output import Output, format_bytes
from registry.domain.pod import STAGES


@dataclass(frozen=True, slots=True)
class DemoReport:
    ready_s: float
    duration_s: float
    scale: DemoScale
    invocations: Sequence[Invocation]
    simple: Sequence[SimpleRun]
    wins: Sequence[WinRun]
    expectations: Sequence[Expectation]


def print_invocations(output: Output, invocations: Sequence[Invocation]) -> None:
    output.line()
    output.table(
        ("REQUEST", "ANSWER", "START", "POD", "SECONDS"),
        [
            (
                each.how,
                each.shown,
                each.response.start,
                each.response.pod,
                f"{each.response.latency_s:.2f}",
            )
            for each in invocations
        ],
        title="Requests to the sample models",
    )


def print_simple(output: Output, runs: Sequence[SimpleRun], scale: DemoScale) -> None:
    """Section 6.2: cold starts and latencies, then the time per stage."""
    output.line()
    link = format_bytes(scale.simple_link_bytes_per_s)
    rows, stage_rows = [], []
    for policy in LIU_SIMPLE:
        mine = [run for run in runs if run.policy == policy]
        values, liu = latencies_s(mine), LIU_SIMPLE[policy]
        seeds = ", ".join(str(run.cold_starts) for run in mine)
        rows.append(
            (
                policy,
                seeds,
                f"{mean_s(values):.2f}",
                f"{percentile_s(values, 0.95):.2f}",
                f"{mean_s([run.total_s for run in mine]):.2f}",
                str(liu.cold_starts),
                f"{liu.mean_s:.2f}",
                f"{liu.total_s:.2f}",
            )
        )
        stages = mean_stages_s([answer for run in mine for answer in run.answers])
        stage_rows.append((policy, *(f"{1000 * stages[stage]:.1f}" for stage in STAGES)))
    output.table(
        (
            "POLICY",
            "COLD STARTS BY SEED",
            "MEAN S",
            "P95 S",
            "TOTAL S",
            "LIU: COLD",
            "LIU: MEAN S",
            "LIU: TOTAL S",
        ),
        rows,
        title=f"Liu 2025, section 6.2: ten translations by t5-small, cold; link {link}/s per pod",
    )
    output.line()
    output.table(
        ("POLICY", *(stage.upper() for stage in STAGES)),
        stage_rows,
        title="Mean milliseconds per request and stage (server-timing)",
    )


def print_wins(output: Output, runs: Sequence[WinRun], scale: DemoScale) -> None:
    """Section 6.4: the thesis's three tables merged into one."""
    output.line()
    link = format_bytes(scale.win_link_bytes_per_s)
    rows = []
    for run in runs:
        liu_s = run.scenario.liu_s.get(run.policy)
        mine = [each for each in runs if each.scenario == run.scenario]
        fastest = min(each.concurrent_s for each in mine if each.policy != "auto")
        starts = ", ".join(sorted(answer.start for answer in run.answers))
        marks = "fastest" if run.concurrent_s == fastest and run.policy != "auto" else ""
        rows.append(
            (
                _row_heading(run),
                run.policy,
                f"{run.concurrent_s:.2f}",
                f"{run.total_s:.2f}",
                starts,
                f"{liu_s:.2f}" if liu_s else "-",
                marks,
            )
        )
    output.table(
        ("WORKLOAD", "POLICY", "2 CONCURRENT S", "END TO END S", "STARTS", "LIU: S", ""),
        rows,
        title=(
            f"Liu 2025, section 6.4: two concurrent translations by t5-small; link {link}/s per pod"
        ),
    )


def _row_heading(run: WinRun) -> str:
    """The workload's title in its first row, the length of its sleeps in its second row."""
    if run.policy == POLICIES[0]:
        return f"{run.scenario.section} {run.scenario.title}"
    return f"  5 s scaled to {run.sleep_s:g} s" if run.policy == POLICIES[1] else ""


def print_expectations(output: Output, report: DemoReport) -> None:
    output.line()
    output.table(
        ("PROMISE", "SHOWN", "SEEN"),
        [(each.text, "yes" if each.is_met else "NO", each.seen) for each in report.expectations],
        title=(
            f"Platform ready after {report.ready_s:.1f} s; the demo took {report.duration_s:.0f} s"
        ),
    )


def as_document(report: DemoReport) -> dict[str, Any]:
    """The report for `--json`, without the response bodies."""
    return {
        "ready_s": round(report.ready_s, 3),
        "duration_s": round(report.duration_s, 3),
        "scale": asdict(report.scale),
        "invocations": [
            {
                "how": each.how,
                "shown": each.shown,
                "start": each.response.start,
                "pod": each.response.pod,
                "latency_s": each.response.latency_s,
            }
            for each in report.invocations
        ],
        "simple": [
            {
                "policy": run.policy,
                "seed": run.seed,
                "cold_starts": run.cold_starts,
                "latencies_s": [answer.latency_s for answer in run.answers],
                "mean_stages_s": mean_stages_s(run.answers),
                "liu_total_s": LIU_SIMPLE[run.policy].total_s,
            }
            for run in report.simple
        ],
        "wins": [
            {
                "section": run.scenario.section,
                "policy": run.policy,
                "sleep_s": run.sleep_s,
                "concurrent_s": run.concurrent_s,
                "total_s": run.total_s,
                "starts": [answer.start for answer in run.answers],
                "reasons": [answer.reason for answer in run.answers],
                "liu_s": run.scenario.liu_s.get(run.policy),
            }
            for run in report.wins
        ],
        "expectations": [asdict(each) for each in report.expectations],
    }
