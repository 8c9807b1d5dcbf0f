"""Six cells on the real platform, and the same requests in the simulator.

Preprocessing and postprocessing sleep for a stated time; loads and inference are real. The
simulation has the medians of the live runs.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
import pyarrow as pa

from load.report.run import Floats
from load.schema import Trace
from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from load.simulator.simulation import Simulation
from load.trace_spec import open_trace
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, RoutingPolicy, Tier
from registry.domain.pod import ProfilePoint
from research.demo import TimedResponse
from research.experiments.harness.experiment import Cell, Settings, Table

LIVE_POLICIES: Final = (
    RoutingPolicy.COLOCATION,
    RoutingPolicy.COLOCATION_QUEUEING,
    RoutingPolicy.REMOTE_PROXY,
    RoutingPolicy.AUTO,
)
AROUND_S: Final = 0.05
"""Preprocessing, and postprocessing as well."""
MAX_ERROR: Final = 0.1
SAMPLE: Final = "all-minilm-l6-v2"
_REQUESTS: Final = 150
_SHARES: Final = (0.5, 0.9, 0.95)
_TIE: Final = 1.05
"""Ratio of live mean latencies up to which two policies have the same rank."""


@dataclass(frozen=True, slots=True)
class LiveCell:
    """A cluster that fits on one machine."""

    name: str
    pods: int
    slots: int
    places: int
    """Models that fit in a pod's memory."""
    models: int
    rate: float
    arrivals: str
    """Arrival process of a trace specification, with its own parameters."""
    zipf: float

    def trace(self) -> Trace:
        name, _, more = self.arrivals.partition(",")
        return open_trace(
            f"{name}:rate={self.rate:g},duration=600s,models={self.models},zipf={self.zipf:g}"
            f"{',' + more if more else ''}|limit={_REQUESTS}",
            seed=1,
        )

    def requests(self) -> list[tuple[float, str]]:
        """Times and models."""
        return [
            pair
            for batch in self.trace()
            for pair in zip(
                batch.column("at_s").to_pylist(), batch.column("model").to_pylist(), strict=True
            )
        ]

    def specs(self) -> list[ModelSpec]:
        policy = ModelPolicy(max_batch_size=1)
        return [
            ModelSpec(ModelName("default", f"model-{each}"), f"s3://models/{SAMPLE}", policy=policy)
            for each in range(self.models)
        ]


LIVE_CELLS: Final = (
    LiveCell("short memory", 3, 2, 1, 6, 8.0, "poisson", 0.9),
    LiveCell("short memory, bursts", 3, 2, 1, 6, 6.0, "gamma,cv=3", 0.9),
    LiveCell("two places", 3, 2, 2, 9, 8.0, "poisson", 0.9),
    LiveCell("two places, bursts", 3, 2, 2, 9, 6.0, "gamma,cv=3", 0.9),
    LiveCell("many slots", 2, 6, 2, 8, 12.0, "poisson", 0.6),
    LiveCell("enough memory", 3, 2, 4, 6, 10.0, "poisson", 0.9),
)


@dataclass(frozen=True, slots=True)
class LiveRun:
    """One policy in one live cell."""

    policy: RoutingPolicy
    responses: tuple[TimedResponse, ...]
    """In the order of arrival."""
    known_s: Mapping[str, Mapping[str, float]]
    """The registry's estimates at the start, by model key and measure."""

    @property
    def latencies_s(self) -> Floats:
        return np.array([each.latency_s for each in self.responses])


@dataclass(frozen=True, slots=True)
class LiveTimes:
    """Medians of live runs, in seconds."""

    infer_s: float
    load_s: Mapping[Tier, float]
    overhead_s: float
    """HTTP, gateway and client."""


def live_times(runs: Sequence[LiveRun]) -> LiveTimes:
    answers = [each for run in runs for each in run.responses]
    warm = [each for each in answers if not each.is_cold]
    loads: dict[Tier, list[float]] = {}
    for each in answers:
        if each.is_cold:
            loads.setdefault(Tier(each.start), []).append(each.stages_s["load"])
    longest_s = max((median(found) for found in loads.values()), default=0.0)
    return LiveTimes(
        median(each.stages_s["infer"] for each in warm),
        {
            tier: median(loads[tier]) if tier in loads else longest_s
            for tier in (Tier.REMOTE, Tier.DISK, Tier.HOST)
        },
        max(0.0, median(each.latency_s - sum(each.stages_s.values()) for each in warm)),
    )


def request_seed(number: int) -> int:
    """The gateway's seed of a request, live and simulated."""
    return 1000 + number


def simulated_latencies_s(cell: LiveCell, run: LiveRun, times: LiveTimes) -> Floats:
    """The same requests in the simulator, in the order of arrival."""
    count = len(run.responses)
    simulation = Simulation(
        _cluster(cell, times),
        cell.trace(),
        run.policy,
        draws=(random.Random(request_seed(each)).random() for each in range(count)),
    )
    simulation.set_measured_times(run.known_s)
    rows = pa.Table.from_batches(list(simulation)).sort_by("scheduled_s")
    found: Floats = rows["finished_s"].to_numpy() - rows["scheduled_s"].to_numpy()
    return found


def _cluster(cell: LiveCell, times: LiveTimes) -> ClusterPlan:
    size = 10**6
    return ClusterPlan(
        tuple(
            NodePlan(
                name,
                (PodPlan(name, cell.slots, cell.places * size),),
                host_memory_bytes=cell.models * size,
            )
            for name in (f"pod-{number}" for number in range(cell.pods))
        ),
        tuple(
            ModelPlan(
                spec,
                size_bytes=size,
                memory_bytes=size,
                infer=(ProfilePoint(1, times.infer_s),),
                preprocess_s=AROUND_S,
                postprocess_s=AROUND_S,
                load_s=times.load_s,
            )
            for spec in cell.specs()
        ),
        gateway_hop_s=times.overhead_s / 2,
    )


def live_tables(settings: Settings) -> list[Table]:
    """Empty without a live platform."""
    if settings.live is None:
        return []
    rows: list[tuple[Cell, ...]] = []
    for done, cell in enumerate(LIVE_CELLS[:1] if settings.is_quick else LIVE_CELLS):
        settings.progress(done, len(LIVE_CELLS), f"live: {cell.name}")
        runs = settings.live.regret(cell)
        settings.keep("live: regret", cell, runs)
        rows += _rows(cell, runs)
    return [
        Table(
            f"Live and simulated, {_REQUESTS} requests per run; marks: ranks by mean latency alike "
            f"(within {_TIE - 1:.0%}: one rank), percentiles within {MAX_ERROR:.0%}",
            (
                "cell",
                "policy",
                "mean s: live",
                "simulated",
                *(f"p{100 * share:g} off" for share in _SHARES),
                "ranks alike",
            ),
            tuple(rows),
        )
    ]


def _rows(cell: LiveCell, runs: Sequence[LiveRun]) -> list[tuple[Cell, ...]]:
    times = live_times(runs)
    simulated = [simulated_latencies_s(cell, run, times) for run in runs]
    live_s = [float(run.latencies_s.mean()) for run in runs]
    simulated_s = [float(found.mean()) for found in simulated]
    alike = "yes" if are_ranks_alike(live_s, simulated_s) else "no"
    return [
        (
            cell.name,
            str(run.policy),
            live_s[at],
            simulated_s[at],
            *(f"{_error(run.latencies_s, simulated[at], share):+.1%}" for share in _SHARES),
            alike,
        )
        for at, run in enumerate(runs)
    ]


def _error(live_s: Floats, simulated_s: Floats, share: float) -> float:
    return float(np.quantile(simulated_s, share) / np.quantile(live_s, share)) - 1


def are_ranks_alike(live_s: Sequence[float], simulated_s: Sequence[float]) -> bool:
    """Whether no pair that differs clearly live has the opposite order in the simulation."""
    pairs = list(zip(live_s, simulated_s, strict=True))
    return all(
        simulated < other_simulated
        for live, simulated in pairs
        for other, other_simulated in pairs
        if other > _TIE * live
    )
