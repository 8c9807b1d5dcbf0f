"""The clusters for the public traces, with times from the literature and the data.

No trace describes the machines that served it: these are chosen so that models compete for memory
and devices are busy for a fifth to a half of the time. A load transfers the model's size over links
if the literature states the size, and takes the measured time if the data contains it.
"""

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, Tier
from registry.domain.profile import ProfilePoint
from research.experiments.harness.experiment import ExperimentError

REQUESTS_FILE: Final = "gentd26_requests.csv.gz"
BASE_MODELS_FILE: Final = "gentd26_load_latency_base_model.csv.gz"
_GB: Final = 10**9
_CHECKPOINT_BYTES: Final = 5 * _GB
"""A Stable Diffusion checkpoint with its parts."""
_LLAMA_7B_BYTES: Final = 135 * _GB // 10
_LLAMA_512_TOKENS_S: Final = {1: 7.795, 2: 8.496, 4: 9.031, 8: 10.018}
"""Llama 7B with vLLM on an A100, by batch size: 512 tokens per sequence (Blinowski et al. 2024,
its data)."""
_PREFILL_S: Final = 0.1
_QUEUE_TIMEOUT_S: Final = 600.0


def image_cluster(names: Sequence[str], data: Path) -> ClusterPlan:
    """Four machines with one device each: memory for three checkpoints, disk for twenty.

    Median generation and load times of the data set; from disk, the fastest tenth of loads.
    """
    infer_s = column_quantile(data / REQUESTS_FILE, "exec_time_seconds", 0.5)
    load_s = column_quantile(data / BASE_MODELS_FILE, "latency_ms", 0.5) / 1000
    disk_s = column_quantile(data / BASE_MODELS_FILE, "latency_ms", 0.1) / 1000
    nodes = [
        NodePlan(
            name,
            (PodPlan(name, slots=1, memory_bytes=3 * _CHECKPOINT_BYTES),),
            disk_bytes=20.0 * _CHECKPOINT_BYTES,
        )
        for name in (f"gpu-{number}" for number in range(4))
    ]
    models = [
        ModelPlan(
            _spec(name, ModelPolicy(max_batch_size=1, queue_timeout_s=_QUEUE_TIMEOUT_S)),
            size_bytes=_CHECKPOINT_BYTES,
            memory_bytes=_CHECKPOINT_BYTES,
            infer=(ProfilePoint(1, infer_s),),
            load_s={Tier.HOST: disk_s, Tier.DISK: disk_s, Tier.REMOTE: load_s},
        )
        for name in names
    ]
    return ClusterPlan(tuple(nodes), tuple(models))


def function_cluster(names: Sequence[str], _: Path) -> ClusterPlan:
    """Eight machines of four slots with memory for two of five models, of T5-small's size."""
    nodes = [
        NodePlan(
            name,
            (PodPlan(name, slots=4, memory_bytes=500 * 10**6),),
            object_storage_bytes_per_s=1e8,
        )
        for name in (f"node-{number}" for number in range(8))
    ]
    points = (ProfilePoint(1, 0.15), ProfilePoint(8, 0.335))
    models = [ModelPlan(_spec(name), 242 * 10**6, 242 * 10**6, points) for name in names]
    return ClusterPlan(tuple(nodes), tuple(models))


def language_cluster(names: Sequence[str], _: Path, *, is_continuous: bool) -> ClusterPlan:
    """Sixteen devices of eight slots with memory for one Llama 7B each."""
    per_token = tuple(
        ProfilePoint(rows, seconds / 512) for rows, seconds in _LLAMA_512_TOKENS_S.items()
    )
    nodes = [
        NodePlan(name, (PodPlan(name, slots=8, memory_bytes=16 * _GB),))
        for name in (f"gpu-{number:02d}" for number in range(16))
    ]
    models = [
        ModelPlan(
            _spec(name, ModelPolicy(max_batch_size=8)),
            size_bytes=_LLAMA_7B_BYTES,
            memory_bytes=_LLAMA_7B_BYTES,
            infer=(ProfilePoint(1, _PREFILL_S), ProfilePoint(8, _PREFILL_S)),
            infer_per_token=per_token,
            is_continuous=is_continuous,
            counts_tokens=True,
        )
        for name in names
    ]
    return ClusterPlan(tuple(nodes), tuple(models))


def _spec(name: str, policy: ModelPolicy | None = None) -> ModelSpec:
    policy = policy or ModelPolicy()
    return ModelSpec(ModelName.parse(name), f"s3://simulated/{name}", policy=policy)


def column_quantile(path: Path, column: str, share: float) -> float:
    """A quantile of one column of a gzipped CSV file, without its empty cells.

    Raises ExperimentError.
    """
    try:
        with gzip.open(path, "rt", newline="", encoding="utf-8") as lines:
            values = sorted(float(row[column]) for row in csv.DictReader(lines) if row[column])
    except (KeyError, ValueError, OSError, EOFError) as error:
        raise ExperimentError(f"{path}: must have numbers in column {column}: {error}") from error
    if not values:
        raise ExperimentError(f"{path}: column {column} has no numbers")
    return values[min(len(values) - 1, int(share * len(values)))]
