"""`python -m tests.chaos.simulated_soak`: 24 simulated hours while models come and go.

Each of 60 models gets requests for half an hour in two, at another time than its neighbours, on
four pods that hold four each. Every ten minutes of virtual time the objects of the process are
counted. Records are taken by the caller; without them the number must be flat: it may not grow,
beyond doubt, by more than half a percent in 24 hours. What a simulated pod keeps of each model that
it ever had, of 240 pairs at most, is taken out: the last pairs meet after days.
"""

import argparse
import gc
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from load.schema import TRACE_SCHEMA
from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from load.simulator.simulation import Simulation
from registry.domain.model import ModelName, ModelSpec
from registry.domain.pod import ProfilePoint
from runtime.device.queue import DeviceModel
from tests.chaos.trend import HOUR_S, trend, without

_MODELS: Final = 60
_ACTIVE_S: Final = 1800.0
_PERIOD_S: Final = 7200.0
_BATCH_S: Final = 600.0
_RATE: Final = 0.1
"""Requests per second to an active model."""
_WARMING_HOURS: Final = 4.0
_GROWTH_A_DAY: Final = 0.005


def plan() -> ClusterPlan:
    models = tuple(
        ModelPlan(
            ModelSpec(ModelName("default", f"m-{number}"), f"s3://models/{number}"),
            infer=(ProfilePoint(1, 0.05),),
        )
        for number in range(_MODELS)
    )
    pods = (PodPlan(f"pod-{number}", slots=4, memory_bytes=10**9) for number in range(4))
    return ClusterPlan(tuple(NodePlan(f"node-{pod.name}", (pod,)) for pod in pods), models)


def trace(hours: float, seed: int) -> Iterator[pa.RecordBatch]:
    rng = random.Random(seed)
    for part in range(int(hours * HOUR_S / _BATCH_S)):
        began_s = part * _BATCH_S
        arrivals = sorted(
            (began_s + rng.random() * _BATCH_S, f"m-{number}")
            for number in range(_MODELS)
            if (began_s + number / _MODELS * _PERIOD_S) % _PERIOD_S < _ACTIVE_S
            for _ in range(int(_RATE * _BATCH_S))
        )
        times, names = zip(*arrivals, strict=True)
        count = len(times)
        columns = [
            list(times),
            ["default"] * count,
            list(names),
            [1] * count,
            [0] * count,
            [None] * count,
            [None] * count,
        ]
        yield pa.record_batch(
            [pa.array(c, f.type) for c, f in zip(columns, TRACE_SCHEMA, strict=True)],
            schema=TRACE_SCHEMA,
        )


@dataclass(frozen=True, slots=True)
class Soaked:
    """Samples after the warming up."""

    times_s: list[float]
    objects: list[float]
    pairs: list[float]
    """Of a pod with a model that it has had."""
    requests: int


def soak(hours: float, seed: int) -> Soaked:
    run = Simulation(plan(), trace(hours, seed), seed=seed)
    times_s: list[float] = []
    objects: list[float] = []
    pairs: list[float] = []
    requests = 0
    for batch in run:  # once in 10 virtual minutes
        requests += batch.num_rows
        if run.events.now_s > _WARMING_HOURS * HOUR_S:
            gc.collect()
            times_s.append(run.events.now_s)
            found = gc.get_objects()
            objects.append(len(found))
            pairs.append(sum(isinstance(each, DeviceModel) for each in found))
            del found  # else it keeps what ends before the next count
    return Soaked(times_s, objects, pairs, requests)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.simulated_soak")
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    soaked = soak(options.hours, options.seed)
    found = trend(soaked.times_s, soaked.objects)
    beyond_pairs = trend(
        without(soaked.times_s, soaked.pairs), without(soaked.objects, soaked.pairs)
    )
    statm = Path("/proc/self/statm").read_text().split()
    print(f"{soaked.requests:,} requests, {int(statm[1]) * 4096 / 1e6:.0f} MB at the end")  # noqa: T201
    print("| series | mean | per hour | 95 % confidence |\n|---|---|---|---|")  # noqa: T201
    print(f"| objects | {found} |")  # noqa: T201
    print(f"| pairs of pod and model | {trend(soaked.times_s, soaked.pairs)} |")  # noqa: T201
    print(f"| objects, less those of pairs | {beyond_pairs} |")  # noqa: T201
    if beyond_pairs.grows(_GROWTH_A_DAY / 24, 0.0):
        print("VIOLATION the simulator's objects grow")  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
