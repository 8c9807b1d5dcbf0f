"""The experiment traces: public traces under every routing policy.

GenTD26 (Lin et al., SoCC 2025): a day and a week of requests to 87 image models. Huawei (Joosen et
al., EuroSys 2025): a day of five regions, with cold starts per minute in place of requests. Azure
(Patel et al., ISCA 2024): an hour of requests to two language models.

No trace describes the machines that served it: these are chosen so that models compete for memory
and devices are busy for a fifth to a half of the time. A load transfers the model's size over links
if the literature states the size, and takes the measured time if the data contains it.
"""

import csv
import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from load.simulator.simulation import Simulation
from load.trace_spec import open_trace
from load.traces.batches import summarise
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, RoutingPolicy, Tier
from registry.domain.pod import ProfilePoint
from research.experiments.harness.experiment import (
    Cell,
    Experiment,
    ExperimentError,
    Result,
    Settings,
    Table,
)
from research.experiments.harness.parallel_map import group_results, parallel_map

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


ClusterBuilder = Callable[[Sequence[str], Path], ClusterPlan]
"""The cluster for full names of models, with figures of the data folder."""
_GENTD26: Final = "gentd26_per_minute.csv.gz"
_HUAWEI: Final = "huawei_cold_starts_per_minute.csv.gz"
_CODE: Final = "azure_llm_2023_code.csv.gz"
_CHAT: Final = "azure_llm_2023_conv.csv.gz"
_AZURE: Final = f"azure-llm:'{{data}}/{_CODE}',model=code + azure-llm:'{{data}}/{_CHAT}',model=chat"
QUICK_REQUESTS: Final = 200
_COMPARED: Final = tuple(RoutingPolicy)


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


@dataclass(frozen=True, slots=True)
class TraceCase:
    """One trace and its cluster."""

    name: str
    title: str
    trace: str
    """A trace specification; `{data}` stands for the data folder."""
    files: tuple[str, ...]
    cluster: ClusterBuilder


CASES: Final = (
    TraceCase("gentd26-day", "GenTD26, day 18, 87 image models; 4 devices with room for 3 each",
              f"gentd26-per-minute:'{{data}}/{_GENTD26}'|slice=432h:456h",
              (_GENTD26, REQUESTS_FILE, BASE_MODELS_FILE), image_cluster),
    TraceCase("gentd26-week", "GenTD26, days 14 to 21, the same cluster",
              f"gentd26-per-minute:'{{data}}/{_GENTD26}'|slice=336h:504h",
              (_GENTD26, REQUESTS_FILE, BASE_MODELS_FILE), image_cluster),
    TraceCase("huawei-day", "Huawei, day 1, five regions as models; 8 pods of 4 slots with room "
              "for 2", f"huawei:'{{data}}/{_HUAWEI}'|slice=24h:48h", (_HUAWEI,),
              function_cluster),
    TraceCase("azure-llm-hour", "Azure LLM 2023, an hour, two models; 16 devices of 8 slots, room "
              "for 1; static batches", _AZURE, (_CODE, _CHAT),
              partial(language_cluster, is_continuous=False)),
    TraceCase("azure-llm-hour-continuous", "Azure LLM 2023, the same hour and cluster; continuous "
              "batching", _AZURE, (_CODE, _CHAT),
              partial(language_cluster, is_continuous=True)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TraceTask:
    case: TraceCase
    trace: str
    cluster: ClusterPlan
    policy: RoutingPolicy
    seed: int


def run(settings: Settings) -> Result:
    """Every trace whose files exist, under every routing policy."""
    seed = settings.seeds[0] if settings.seeds else 1
    notes = [f"simulated, seed {seed}; a cold start is a response that waited for a load"]
    tasks: list[TraceTask] = []
    for case in CASES:
        if missing := [name for name in case.files if settings.file(name) is None]:
            notes.append(f"{case.name} is left out: {', '.join(missing)} not in PILOTLIGHT_DATA")
        else:
            tasks += _tasks(case, settings, seed)
    found = parallel_map(simulate, tasks, settings, what="traces")
    rows = group_results(tasks, map(_row, tasks, found), lambda task: task.case)
    columns = (
        "policy",
        "requests",
        "answered",
        "cold starts",
        "cold-start rate",
        "loads",
        "p50 s",
        "p99 s",
        "idle models GB h",
    )
    tables = tuple(Table(case.title, columns, tuple(own)) for case, own in rows.items())
    return Result(tables, tuple(notes))


def _tasks(case: TraceCase, settings: Settings, seed: int) -> list[TraceTask]:
    data = settings.data
    assert data is not None, "its files were found there"
    text = case.trace.format(data=data)
    if settings.is_quick:
        text = f"({text})|limit={QUICK_REQUESTS}"
    names = list(summarise(open_trace(text, seed=seed)).models)
    cluster = case.cluster(names, data)
    return [TraceTask(case, text, cluster, policy, seed) for policy in _COMPARED]


def simulate(task: TraceTask) -> dict[str, Any]:
    """The simulator's summary of one trace under one policy."""
    run = Simulation(task.cluster, open_trace(task.trace, seed=task.seed), task.policy, task.seed)
    for _ in run:
        pass
    return dict(run.summary.document())


def _row(task: TraceTask, summary: dict[str, Any]) -> tuple[Cell, ...]:
    requests, ok, latency = summary["requests"], summary["ok"], summary["latency_s"]
    wasted = summary.get("wasted_memory_byte_s")
    return (
        task.policy.value,
        requests,
        f"{ok / max(1, requests):.2%}",
        summary["cold_starts"],
        f"{summary['cold_starts'] / max(1, ok):.2%}",
        sum(summary["loads"].values()),
        latency["p50"],
        latency["p99"],
        None if wasted is None else wasted / 3600 / 1e9,
    )


EXPERIMENT: Final = Experiment(
    "traces", "Real traces (GenTD26, Huawei, Azure LLM) under every routing policy", run
)
