"""Variants that no pod holds at first, beyond the paper: what their background loads gain.

The three demo applications in the simulator, with the live gateway's windows and price of loads;
their smallest variants are warm. An hour per load stands for a gateway that never begins one.
"""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from load.schema import Trace
from load.simulator.cluster.cluster_file import cluster_of
from load.simulator.cluster.plan import ClusterPlan
from load.simulator.simulation import Simulation
from load.trace_spec import open_trace
from research.experiments.harness.experiment import Table
from research.experiments.harness.parallel_map import parallel_map
from research.experiments.sneakpeek.demo_data import LATENCY_S, REQUEST_MIX, SIZES
from research.experiments.sneakpeek.figures import Bench, interval
from variants.look_files import confusion_matrix

_HOUR_S: Final = 3600.0
LOADS_S: Final = {"none: all are warm": 0.0, "2 s": 2.0, "20 s": 20.0, "an hour": _HOUR_S}
_DURATION_S: Final = 120
_EARLY_S: Final = 30
_RATE: Final = 3
"""Requests per second of each application."""
_DEADLINE: Final = "500ms"


@dataclass(frozen=True, slots=True)
class ColdTask:
    folder: Path
    """Of the demo applications."""
    scale: float
    """Of latencies."""
    load_s: float
    seed: int


@dataclass(frozen=True, slots=True)
class ColdScore:
    early: float
    """Mean achieved utility of requests that arrive in the first 30 s."""
    later: float
    loads: int


def cold_variants(bench: Bench) -> Table:
    """Achieved utility by the time that a load takes."""
    cells = list(LOADS_S.values())
    tasks = [
        ColdTask(bench.folder, bench.load.scale, load_s, seed)
        for load_s in cells
        for seed in bench.settings.seeds
    ]
    found = parallel_map(run_cold, tasks, bench.settings, what="cold variants")
    size = len(bench.settings.seeds)
    rows = []
    for at, name in enumerate(LOADS_S):
        scores = found[at * size : (at + 1) * size]
        rows.append(
            (
                name,
                interval([each.early for each in scores]),
                interval([each.later for each in scores]),
                statistics.fmean(each.loads for each in scores),
            )
        )
    return Table(
        f"Beyond the paper: medium and large variants that are cold at first, {_RATE} requests per "
        f"second of each application, deadline {_DEADLINE}, refined",
        ("load of a variant", f"utility, first {_EARLY_S} s", f"until {_DURATION_S} s", "loads"),
        tuple(rows),
    )


def run_cold(task: ColdTask) -> ColdScore:
    run = Simulation(_cluster(task), _trace(task.seed), seed=task.seed)
    run.set_measured_times(
        {
            model.spec.key: {"load:remote": task.load_s}
            for model in run.registry.state.models.values()
        }
    )
    rows = pa.Table.from_batches(list(run), run.schema)
    arrived_s, utility = (rows[each].to_numpy() for each in ("scheduled_s", "utility"))
    is_early = arrived_s < _EARLY_S
    return ColdScore(
        float(utility[is_early].mean()),
        float(utility[~is_early].mean()),
        sum(run.summary.loads_started.values()),
    )


def _trace(seed: int) -> Trace:
    each = f"poisson:rate={_RATE},duration={_DURATION_S}s|model="
    return open_trace(" + ".join(each + name for name in REQUEST_MIX), seed=seed)


def _cluster(task: ColdTask) -> ClusterPlan:
    document = {
        "network": {"gateway_hop": "0s", "pod_hop": "0s"},
        "nodes": [
            {
                "name": "n",
                "object_storage_rate": "1GB/s",
                "disk_rate": "1GB/s",
                "pods": [{"slots": 8}],
            }
        ],
        "models": [
            _model(f"{name}-{size}", name, latency_s * task.scale, _load_s(task, size))
            for name in REQUEST_MIX
            for size, latency_s in zip(SIZES, LATENCY_S, strict=True)
        ],
        "applications": [_application(task.folder, name) for name in REQUEST_MIX],
    }
    found: ClusterPlan = cluster_of(document, source="cold variants")
    return found


def _load_s(task: ColdTask, size: str) -> float:
    return 0.0 if size == SIZES[0] else task.load_s


def _model(name: str, application: str, infer_s: float, load_s: float) -> dict[str, Any]:
    model: dict[str, Any] = {
        "name": name,
        "size": "1MB",
        "infer": {1: f"{infer_s}s"},
        "batching": False,
        "assets": "0s",
        "annotations": {"application": application},
    }
    return model | ({"load": {"remote": f"{load_s}s"}} if load_s else {"at": {"n": "device"}})


def _application(folder: Path, name: str) -> dict[str, Any]:
    with np.load(folder / f"{name}-profile.npz", allow_pickle=False) as archive:
        labels = archive["labels"]
        predicted = {size: archive[f"predicted {name}-{size}"] for size in SIZES}
    classes = len(REQUEST_MIX[name])
    return {
        "name": name,
        "spec": {"classes": list(range(classes)), "deadline": _DEADLINE},
        "profile": {
            f"{name}-{size}": confusion_matrix(labels, each, classes).tolist()
            for size, each in predicted.items()
        },
        "examples": str(folder / f"{name}-requests.npz"),
    }
