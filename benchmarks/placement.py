"""Planning times and quality: mixed-integer programs, Usher, and our planner on seeded problems.

Problems are drawn from table A.1 of Elvinger 2024 where PILOTLIGHT_DATA has it, else from random
profiles. Times are CPU seconds of one core.
"""

import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from autoscaler.placement import planner_names, planner_of
from autoscaler.placement.prediction import Predictor
from autoscaler.placement.problem import BatchPoint, ModelProfile, PlanParams, Profiles, Workload
from benchmarks.marks import Mark
from research.placement.fleet import accelerators_of, gap_ratio
from research.placement.profile_csv import read_profiles

PROBLEMS: Final = 100
_SIZE: Final = 8
_LARGE: Final = 100
_KIND: Final = "v100"
_METRICS: Final = ("ao", "wao", "wsm")
_OPTIMAL: Final = 1e-6


@dataclass(frozen=True, slots=True)
class PlanRun:
    problem: str
    planner: str
    cpu_s: float
    goodput_rps: float
    gap_ratio: float
    others_ratio: float | None = None
    """Predicted goodput over that of the other planners' best plan; only for ours."""


def measure(*, seed: int, problems: int, is_quick: bool) -> list[PlanRun]:
    found = []
    for number in range(problems):
        rng = random.Random(f"{seed}:{number}")
        profiles, workloads = _problem(rng, _SIZE)
        metric = rng.choice(_METRICS)
        name = f"8x8 {number}"
        found.append(_run(name, f"{metric}-milp", workloads, _SIZE, profiles, PlanParams()))
        usher = "usher" if metric == "ao" else f"{metric}-usher"
        found.append(_run(name, usher, workloads, _SIZE, profiles, PlanParams()))
        ours = _run(name, "predicted-goodput", workloads, _SIZE, profiles, PlanParams())
        best_rps = max(_predicted_rps(other, workloads, profiles) for other in ("wsm-milp", usher))
        ratio = ours.goodput_rps / best_rps if best_rps else 1.0
        found.append(replace(ours, others_ratio=ratio))
    for metric in _METRICS[2 if is_quick else 0 :]:
        rng = random.Random(f"{seed}:large")
        profiles, workloads = random_problem(rng, _LARGE)
        found.append(_run("100x100", f"{metric}-milp", workloads, _LARGE, profiles, PlanParams()))
    return found


def _run(
    problem: str,
    planner: str,
    workloads: Sequence[Workload],
    gpus: int,
    profiles: Profiles,
    params: PlanParams,
) -> PlanRun:
    started = time.process_time()
    placement = planner_of(planner)(workloads, accelerators_of(_KIND, gpus), profiles, (), params)
    took = time.process_time() - started
    return PlanRun(problem, planner, took, placement.total_rps, gap_ratio(placement))


def source() -> str:
    """Where the models of the 8x8 problems come from."""
    return "Elvinger 2024, table A.1" if _table() is not None else "random profiles"


def _table() -> Path | None:
    path = Path(os.environ.get("PILOTLIGHT_DATA", "")) / "v100_profiles.csv"
    return path if os.environ.get("PILOTLIGHT_DATA") and path.is_file() else None


def _problem(rng: random.Random, size: int) -> tuple[Profiles, list[Workload]]:
    path = _table()
    if path is None:
        return random_problem(rng, size)
    lines = path.read_text(encoding="utf-8").splitlines()
    profiles = Profiles(read_profiles(lines, kind=_KIND, file=path.name))
    models = rng.sample(sorted(each.model for each in profiles.models), size)
    return profiles, [
        Workload(model, float(rng.randint(100, 1000)), rng.choice((0.15, 0.2, 0.25, 0.3, 0.35)))
        for model in models
    ]


def random_problem(rng: random.Random, size: int) -> tuple[Profiles, list[Workload]]:
    """Latency grows with the batch; needs of compute and memory are random."""
    profiles = []
    for number in range(size):
        latency_s, compute, points = rng.uniform(0.003, 0.04), rng.uniform(8, 60), []
        for exponent in range(2, 7):
            batch = 2**exponent
            latency_s = round(latency_s * rng.uniform(1.05, 2.1), 4)
            compute = min(99.0, compute * rng.uniform(1.0, 1.6))
            points.append(
                BatchPoint(
                    batch,
                    latency_s,
                    round(batch / latency_s, 2),
                    rng.uniform(0.5, 2) * batch / 4,
                    rng.uniform(70, 100),
                    compute * 0.6,
                    compute,
                )
            )
        profiles.append(ModelProfile(f"m{number}", _KIND, tuple(points)))
    workloads = [
        Workload(f"m{number}", float(rng.randint(50, 1500)), rng.choice((0.05, 0.1, 0.2)))
        for number in range(size)
    ]
    return Profiles(tuple(profiles)), workloads


def _predicted_rps(planner: str, workloads: Sequence[Workload], profiles: Profiles) -> float:
    accelerators, params = accelerators_of(_KIND, _SIZE), PlanParams(has_shares=False)
    replicas = planner_of(planner)(workloads, accelerators, profiles, (), params).replicas
    kinds = {each.name: each.kind for each in accelerators}
    in_time = Predictor(workloads, kinds, profiles, params).in_time(replicas)
    return sum(each.rate_rps * in_time[each.model] for each in workloads)


def summary(found: Sequence[PlanRun]) -> str:
    lines = [
        "| problems | planner | runs | CPU s: p50 | p95 | max | worst gap |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for size in ("8x8", "100x100"):
        for planner in planner_names():
            mine = [
                each for each in found if each.planner == planner and each.problem.startswith(size)
            ]
            if not mine:
                continue
            times = sorted(each.cpu_s for each in mine)
            gap = max(each.gap_ratio for each in mine)
            p50, p95 = times[len(times) // 2], times[int(0.95 * (len(times) - 1))]
            lines.append(
                f"| {size} | {planner} | {len(mine)} | {p50:.3f} | {p95:.3f} | {times[-1]:.3f} | "
                f"{gap:.2%} |"
            )
    return "\n".join(lines)


def marks(found: Sequence[PlanRun]) -> list[Mark]:
    small = [each for each in found if each.problem.startswith("8x8")]
    milp = [each for each in small if each.planner.endswith("milp")]
    usher = [each for each in small if each.planner.endswith("usher")]
    ours = [each for each in small if each.planner == "predicted-goodput"]
    large = [each for each in found if each.problem == "100x100"]
    proven = sum(each.gap_ratio <= _OPTIMAL for each in milp)
    quick = sum(each.cpu_s <= 1 for each in milp)
    slowest = max(each.cpu_s for each in milp)
    longest, worst = max(each.cpu_s for each in large), max(each.gap_ratio for each in large)
    usher_s = max(each.cpu_s for each in usher)
    ours_s = max(each.cpu_s for each in ours)
    ratio = min(each.others_ratio or 0.0 for each in ours)
    count = len(milp)
    return [
        Mark("MILP at 8x8: all proven optimal", f"{proven} of {count}", proven == count),
        Mark("MILP at 8x8: 95 % within 1 s", f"{quick} of {count}", quick >= 0.95 * count),
        Mark("MILP at 8x8: all within 3 s", f"{slowest:.2f} s", slowest <= 3),
        Mark(
            "MILP at 100x100 within 5 s, with its gap",
            f"{longest:.2f} s, gap up to {worst:.1%}",
            longest <= 5,
        ),
        Mark("Usher at 8x8 within 1 s", f"{usher_s:.3f} s", usher_s <= 1),
        Mark("ours predicted at least 99 % of the best other plan", f"{ratio:.2%}", ratio >= 0.99),
        Mark("ours within 10 s", f"{ours_s:.2f} s", ours_s <= 10),
    ]
