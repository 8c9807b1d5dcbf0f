"""CPU time of a plan of six steps, by number of devices: candidates, tables and search.

Devices are busy and hold models at random. One plan is what the scheduler computes for a run whose
next call was not foreseen.
"""

import random
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Final

import numpy as np

from benchmarks.machine import machine_facts, save
from workflows.plan.costs import (
    Device,
    Links,
    ModelCosts,
    QueuedBatch,
    TransferCosts,
    scheduling_problem,
)
from workflows.plan.problem import Placement, Schedule, Step, candidate_devices
from workflows.plan.speculative import FEW_STATES, MergedSteps, place_sharing_batches, speculative

SIZES: Final = (8, 32, 128, 1000)
PLANS: Final = 200
GILL_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
GILL_PLANS: Final = 40
MAX_UNFILTERED: Final = 128
STEPS: Final = 6
MODELS: Final = 12
MARKS_MS: Final = {32: "p50 1", 1000: "p95 5"}
_LINKS: Final = Links(
    TransferCosts(0.0005, 1e10), TransferCosts(0.0005, 1e10), TransferCosts(0.001, 1e9)
)


@dataclass(frozen=True, slots=True)
class PlanningTime:
    shape: str
    devices: int
    p50_ms: float
    p95_ms: float
    exact: float
    """Share of plans that no placement on these candidates ends before."""


def costs(rng: random.Random) -> dict[str, ModelCosts]:
    found = {}
    for number in range(MODELS):
        first_s = rng.uniform(0.02, 0.5)
        found[f"m{number:02}"] = ModelCosts(
            lambda size, first_s=first_s: first_s * (0.8 + 0.2 * size),  # type: ignore[misc]
            8,
            rng.uniform(0.5, 4.0),
            rng.uniform(1e3, 1e7),
        )
    return found


def devices(rng: random.Random, count: int) -> list[Device]:
    found = []
    for number in range(count):
        loaded = rng.sample(range(MODELS), 3)
        batches, free_s = [], 0.0
        for _ in range(rng.randrange(4)):
            batches.append(QueuedBatch(f"m{rng.choice(loaded):02}", rng.randrange(1, 8), free_s))
            free_s += rng.uniform(0.05, 0.5)
        names = frozenset(f"m{each:02}" for each in loaded)
        found.append(Device(f"d{number:04}", f"n{number // 8}", batches, free_s, {}, names))
    return found


def plan(
    steps: list[Step],
    cluster: list[Device],
    models: dict[str, ModelCosts],
    holders: dict[str, list[int]],
) -> Schedule:
    """As the live planner: few candidates, their tables, the search, with twins as one step too."""
    candidates = candidate_devices(
        steps, free_s=[device.free_s for device in cluster], holders=holders
    )
    used = sorted({device for each in candidates for device in each})
    position = {device: at for at, device in enumerate(used)}
    allowed = [[position[device] for device in each] for each in candidates]
    devices_used = [cluster[device] for device in used]

    def place(way: MergedSteps, placed: Mapping[int, Placement]) -> Schedule:
        problem = scheduling_problem(
            way.steps,
            devices_used,
            models,
            _LINKS,
            placed=placed,
            allowed=[allowed[at] for at in way.calls_of()],
        )
        return speculative(problem, FEW_STATES)

    return place_sharing_batches(steps, {}, lambda name: models[name].max_batch, place)


def plan_unfiltered(
    steps: list[Step], cluster: list[Device], models: dict[str, ModelCosts]
) -> Schedule:
    """All devices, and no partial schedule left out but the dominated ones, as the paper's."""
    return speculative(scheduling_problem(steps, cluster, models, _LINKS), sys.maxsize)


def shapes(rng: random.Random) -> dict[str, list[Step]]:
    names = [f"m{rng.randrange(MODELS):02}" for _ in range(STEPS)]
    chain = [Step(name, (at - 1,) if at else ()) for at, name in enumerate(names)]
    join = [Step(name) for name in names[:3]]
    join += [Step(names[3], (0, 1, 2)), Step(names[4], (3,)), Step(names[5], (3, 4))]
    agents = [Step(names[0]) for _ in range(3)] + [Step(names[0], (0, 1, 2)) for _ in range(3)]
    return {"chain": chain, "join": join, "agents": agents}


def measure(count: int) -> list[PlanningTime]:
    rng = random.Random(count)
    times: dict[str, list[float]] = {}
    exact: dict[str, list[bool]] = {}
    for _ in range(PLANS):
        models, cluster = costs(rng), devices(rng, count)
        holders = {
            name: [at for at, device in enumerate(cluster) if name in device.loaded]
            for name in models
        }
        for shape, steps in shapes(rng).items():
            started_s = time.thread_time()
            schedule = plan(steps, cluster, models, holders)
            times.setdefault(shape, []).append(1e3 * (time.thread_time() - started_s))
            exact.setdefault(shape, []).append(schedule.exact)
    found = []
    for shape, values in times.items():
        p50, p95 = np.quantile(values, [0.5, 0.95]).tolist()
        found.append(PlanningTime(shape, count, p50, p95, sum(exact[shape]) / PLANS))
    return found


def measure_application(count: int) -> tuple[float, float | None]:
    """Mean time in ms of a plan of GILL's three steps: with candidates, and without (few devices).

    The experiment `workflow-scale` charges these times (`research/experiments/workflows/scale.py`).
    """
    rng = random.Random(count)
    filtered, unfiltered = list[float](), list[float]()
    for _ in range(GILL_PLANS):
        models, cluster = costs(rng), devices(rng, count)
        holders = {
            name: [at for at, device in enumerate(cluster) if name in device.loaded]
            for name in models
        }
        first, second, third = rng.sample(sorted(models), 3)
        steps = [Step(first), Step(second, (0,)), Step(third, (1,))]
        started_s = time.thread_time()
        plan(steps, cluster, models, holders)
        filtered.append(1e3 * (time.thread_time() - started_s))
        if count <= MAX_UNFILTERED:
            started_s = time.thread_time()
            plan_unfiltered(steps, cluster, models)
            unfiltered.append(1e3 * (time.thread_time() - started_s))
    return mean(filtered), mean(unfiltered) if unfiltered else None


def main() -> None:
    machine = machine_facts()
    print(f"{machine.line()}\n")
    print("| shape | devices | p50 ms | p95 ms | exact | mark, ms |\n|---|---|---|---|---|---|")
    found = [each for count in SIZES for each in measure(count)]
    for each in found:
        mark = MARKS_MS.get(each.devices, "-")
        print(
            f"| {each.shape} | {each.devices} | {each.p50_ms:.2f} | {each.p95_ms:.2f} | "
            f"{each.exact:.2f} | {mark} |"
        )
    print("\n| devices | GILL, candidates, mean ms | GILL, all devices, mean ms |\n|---|---|---|")
    for count in GILL_SIZES:
        filtered_ms, all_ms = measure_application(count)
        print(f"| {count} | {filtered_ms:.2f} | {'-' if all_ms is None else f'{all_ms:.2f}'} |")
    settings = {"plans": PLANS, "steps": STEPS}
    print(f"\nsamples: {save('workflows', machine, settings, [asdict(each) for each in found])}")


if __name__ == "__main__":
    main()
