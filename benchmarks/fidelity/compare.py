"""One trace under every policy, live and simulated, and the difference of their latencies."""

import asyncio
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from benchmarks.fidelity.live import (
    AROUND_S,
    LINK_BYTES_PER_S,
    MEMORY_BYTES,
    MODELS,
    PODS,
    SLOTS,
    FidelityArrival,
    FidelityOutcome,
    ServiceTimes,
    live_platform,
    spec_of,
)
from benchmarks.quantiles import quantile
from load.schema import TRACE_SCHEMA
from load.simulator.cluster.cluster_file import cluster_of
from load.simulator.simulation import Simulation
from registry.domain.model import RoutingPolicy
from registry.domain.pod import STAGES

POLICIES: Final = (
    RoutingPolicy.COLOCATION,
    RoutingPolicy.COLOCATION_QUEUEING,
    RoutingPolicy.REMOTE_PROXY,
    RoutingPolicy.AUTO,
    RoutingPolicy.RANDOM,
)
SHARES: Final = (0.5, 0.9, 0.95, 0.99)
TARGET: Final = 0.1
"""Largest accepted error of a percentile, as a share of the live one."""
_USED_SHARE: Final = 0.5
"""Of all slots."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Extent of the measurement."""

    seed: int
    requests: int
    repeats: int = 1
    """Traces, one seed each; percentiles are over all their requests."""
    only: str = ""
    """Parts of policies' names, separated by commas."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Outcomes of the same arrivals under one policy, live and simulated, in the same order."""

    policy: RoutingPolicy
    live: list[FidelityOutcome]
    simulated: list[FidelityOutcome]

    def error(self, share: float) -> float:
        """Relative error of the simulated percentile."""
        live = quantile([each.latency_s for each in self.live], share)
        return quantile([each.latency_s for each in self.simulated], share) / live - 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """The measured service times, and the outcomes per policy."""

    times: ServiceTimes
    pairs: list[Pair]


def measure(plan: Plan) -> Comparison:
    """Replay one trace under every policy on a live platform, and simulate it."""
    return asyncio.run(_measure(plan))


async def _measure(plan: Plan) -> Comparison:
    pairs = []
    with tempfile.TemporaryDirectory(prefix="bench-fidelity-") as folder:
        async with live_platform(Path(folder)) as live:
            times = await live.times()
            for policy in POLICIES:
                if any(part in policy for part in plan.only.split(",")):
                    pairs.append(pair := Pair(policy, [], []))
                    for trace in traces(plan, times):
                        pair.live.extend(await live.replay(trace, policy))
                        pair.simulated.extend(simulated(trace, policy, times, live.known_s))
    return Comparison(times, pairs)


def traces(plan: Plan, times: ServiceTimes) -> list[list[FidelityArrival]]:
    return [arrivals(plan.seed + number, plan, times) for number in range(plan.repeats)]


def arrivals(seed: int, plan: Plan, times: ServiceTimes) -> list[FidelityArrival]:
    """Poisson arrivals at half of the slots' capacity; the first model is the most popular."""
    rng = random.Random(seed)
    rate = _USED_SHARE * PODS * SLOTS / (2 * AROUND_S + times.infer_s)
    gaps_s = accumulate(rng.expovariate(rate) for _ in range(plan.requests))
    weights = [1 / (1 + number) for number in range(MODELS)]
    return [
        FidelityArrival(at_s, rng.choices(range(MODELS), weights)[0], rng.randrange(1 << 30))
        for at_s in gaps_s
    ]


def simulated(
    trace: Sequence[FidelityArrival],
    policy: RoutingPolicy,
    times: ServiceTimes,
    known_s: Sequence[Mapping[str, float]],
) -> list[FidelityOutcome]:
    """The same arrivals in a simulated cluster of the same pods and service times.

    `known_s` has the live registry's estimates at the trace's start, per model and measure.
    """
    run = Simulation(
        cluster_of(document(times), source="fidelity"),
        [_batch(trace)],
        policy,
        draws=(random.Random(each.seed).random() for each in trace),
    )
    specs = (record.serving for record in run.registry.state.models.values())
    run.set_measured_times(
        {spec.key: known_s[int(spec.name.name.partition("-")[2])] for spec in specs}
    )
    rows = [row for batch in run for row in batch.to_pylist()]
    if failed := [row for row in rows if row["status"] != 200]:
        raise ValueError(f"{len(failed)} of {len(rows)} simulated requests failed: {failed[0]}")
    rows.sort(key=lambda row: float(row["scheduled_s"]))
    return [_outcome(row) for row in rows]


def _outcome(row: Mapping[str, Any]) -> FidelityOutcome:
    return FidelityOutcome(
        row["finished_s"] - row["scheduled_s"],
        row["start"],
        pod=row["entry_pod"],
        predict_pod=row["predict_pod"],
        reason=row["reason"],
        stages_s={stage: row[f"{stage}_ms"] / 1000 for stage in STAGES},
    )


def document(times: ServiceTimes) -> dict[str, Any]:
    """The live platform as a cluster file: each pod with a link and a cache of its own.

    Loads from object storage share their pod's link; the rest of their time is constant.
    """
    load_s = dict(times.load_s)
    fixed_s = max(0.0, load_s.pop("remote", 0.0) - times.model_bytes / LINK_BYTES_PER_S)
    model = {
        "count": MODELS,
        "size": times.model_bytes,
        "annotations": {"max-batch-size": 1},
        "infer": {1: f"{times.infer_s}s"},
        "preprocess": f"{AROUND_S}s",
        "postprocess": f"{AROUND_S}s",
        "load_fixed": f"{fixed_s}s",
        "load": {tier: f"{seconds}s" for tier, seconds in load_s.items()},
    }
    return {
        "nodes": [
            {
                "name": "pod",
                "count": PODS,
                "object_storage_rate": LINK_BYTES_PER_S,
                "host_memory": "1Gi",
                "pods": [{"slots": SLOTS, "memory": MEMORY_BYTES}],
            }
        ],
        "models": [model | {"name": "default/m"}],
        "network": {"gateway_hop": f"{times.overhead_s / 2}s"},
    }


def _batch(trace: Sequence[FidelityArrival]) -> pa.RecordBatch:
    count = len(trace)
    names = [spec_of(each.model).name.name for each in trace]
    columns = [
        pa.array([each.at_s for each in trace], pa.float64()),
        pa.array(["default"] * count).dictionary_encode(),
        pa.array(names).dictionary_encode(),
        pa.array([1] * count, pa.int64()),
        pa.array([0] * count, pa.int64()),
        pa.nulls(count, pa.float64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=TRACE_SCHEMA)


def summary(found: Comparison) -> str:
    """A Markdown table."""
    times = found.times
    loads = ", ".join(f"{tier} {1e3 * each:.0f} ms" for tier, each in times.load_s.items())
    heads = " | ".join(f"p{round(100 * share)}" for share in SHARES)
    lines = [
        f"Measured before: inference {1e3 * times.infer_s:.1f} ms, loads from {loads}, "
        f"HTTP and gateway {1e3 * times.overhead_s:.1f} ms.",
        "",
        f"| policy | | {heads} | cold starts | late by at most |",
        "|---|---|" + "---|" * (len(SHARES) + 2),
    ]
    for pair in found.pairs:
        for name, outcomes in (("live", pair.live), ("simulated", pair.simulated)):
            latencies = [each.latency_s for each in outcomes]
            cells = " | ".join(f"{1e3 * quantile(latencies, share):.0f} ms" for share in SHARES)
            cold = sum(each.start != "warm" for each in outcomes)
            late = max(each.late_s for each in outcomes)
            shown = f"{1e3 * late:.0f} ms" if name == "live" else "-"
            lines.append(f"| {pair.policy} | {name} | {cells} | {cold} | {shown} |")
        errors = [pair.error(share) for share in SHARES]
        verdict = "met" if all(abs(each) <= TARGET for each in errors) else f"over {TARGET:.0%}"
        shown = " | ".join(f"{each:+.1%}" for each in errors)
        lines.append(f"| | off | {shown} | {verdict} | |")
    return "\n".join(lines)
