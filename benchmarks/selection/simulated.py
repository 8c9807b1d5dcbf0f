"""Speed of the simulator with applications: three of them, 300 requests/s, windows of 15."""

import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from load.simulator.cluster.plan import ClusterPlan
from load.simulator.simulation import Simulation
from tests.load.simulator.small_cluster import cluster
from tests.load.simulator.traces import trace
from tests.variants.test_look_client import train_parity

MARK_PER_S: Final = 2000.0
_NAMES: Final = ("one", "two", "three")
_RATE: Final = 300.0
_REQUESTS: Final = 3000
_EXAMPLES: Final = 200
_VARIANTS: Final = (
    ("small", "1250us", [[8, 2], [4, 6]]),
    ("medium", "5ms", [[9, 1], [2, 8]]),
    ("large", "20ms", [[95, 5], [5, 95]]),
)


def measure(policy: str, *, pods: int) -> float:
    """Requests per second of CPU time."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        plan = _plan(Path(folder), policy, pods, rng)
    times = np.cumsum(rng.exponential(1 / _RATE, _REQUESTS)).tolist()
    rows = [(at, _NAMES[rng.integers(len(_NAMES))]) for at in times]
    arrivals = trace(rows)
    started_s = time.process_time()
    finished: int = sum(batch.num_rows for batch in Simulation(plan, arrivals))
    return finished / (time.process_time() - started_s)


def _plan(folder: Path, policy: str, pods: int, rng: np.random.Generator) -> ClusterPlan:
    """Pods that hold all variants, and examples of two classes that the look can tell apart."""
    train_parity(folder)
    labels = rng.integers(0, 2, _EXAMPLES)
    centres = np.where(labels[:, None] == 0, [4.0, 0.0], [0.0, 4.0])
    features = (centres + rng.normal(0, 1, (_EXAMPLES, 2))).astype(np.float32)
    names = ["n"] if pods == 1 else [f"n-{at}" for at in range(pods)]
    found: ClusterPlan = cluster(
        {"pods": [{"slots": 8}] * pods},
        *(
            {
                "name": f"{name}-{size}",
                "infer": {1: latency},
                "batching": False,
                "size": "1MB",
                "assets": "0s",
                "preprocess": "100us",
                "postprocess": "100us",
                "annotations": {"application": name},
                "at": dict.fromkeys(names, "device"),
            }
            for name in _NAMES
            for size, latency, _ in _VARIANTS
        ),
        applications=[_application(folder, name, policy, features, labels) for name in _NAMES],
    )
    return found


def _application(
    folder: Path, name: str, policy: str, features: NDArray[np.float32], labels: NDArray[np.int64]
) -> dict[str, Any]:
    predicted = {f"predicted {name}-{size}": labels for size, _, _ in _VARIANTS}
    file = folder / f"{name}.npz"
    np.savez(file, features=features, labels=labels, **predicted)  # type: ignore[arg-type]
    return {
        "name": name,
        "spec": {
            "classes": ["even", "odd"],
            "inputs": [{"name": "features", "shape": [-1, 2]}],
            "deadline": "150ms",
            "policy": policy,
            "window": {"length": "50ms", "fixed": True},
            "sneakPeek": {"uri": f"file://{folder}"},
        },
        "profile": {f"{name}-{size}": matrix for size, _, matrix in _VARIANTS},
        "examples": str(file),
    }
