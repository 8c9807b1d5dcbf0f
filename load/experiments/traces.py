"""Real traces under every routing policy: cold starts, latencies, memory held by idle models.

GenTD26 (Lin et al., SoCC 2025): a day and a week of requests to 87 image models. Huawei (Joosen et
al., EuroSys 2025): a day of five regions, whose cold starts per minute stand in for requests.
Azure (Patel et al., ISCA 2024): an hour of requests to two language models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from load.experiments.experiment import Experiment, Result, Settings, Table
from load.experiments.parallel_map import run_side_by_side
from load.experiments.real_clusters import (
    column_quantile,
    function_cluster,
    image_cluster,
    language_cluster,
)
from load.simulator.simulation import Simulation
from load.trace_spec.trace_spec import open_trace
from load.traces.summary import summarise
from registry.domain.model import RoutingPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from load.experiments.experiment import Cell
    from load.simulator.cluster.plan import ClusterPlan

_GENTD26: Final = "gentd26_per_minute.csv.gz"
_REQUESTS: Final = "gentd26_requests.csv.gz"
_BASE_MODELS: Final = "gentd26_load_latency_base_model.csv.gz"
_HUAWEI: Final = "huawei_cold_starts_per_minute.csv.gz"
_CODE: Final = "azure_llm_2023_code.csv.gz"
_CHAT: Final = "azure_llm_2023_conv.csv.gz"
_AZURE: Final = f"azure-llm:'{{data}}/{_CODE}',model=code + azure-llm:'{{data}}/{_CHAT}',model=chat"
QUICK_REQUESTS: Final = 200


def _images(names: Sequence[str], data: Path) -> ClusterPlan:
    """Median generation and load of the data set; from disk, the fastest tenth of its loads."""
    return image_cluster(
        names,
        infer_s=column_quantile(data / _REQUESTS, "exec_time_seconds", 0.5),
        load_s=column_quantile(data / _BASE_MODELS, "latency_ms", 0.5) / 1000,
        disk_s=column_quantile(data / _BASE_MODELS, "latency_ms", 0.1) / 1000,
    )


def _functions(names: Sequence[str], _: Path) -> ClusterPlan:
    return function_cluster(names)


def _language(names: Sequence[str], _: Path) -> ClusterPlan:
    return language_cluster(names, is_continuous=False)


def _continuous_language(names: Sequence[str], _: Path) -> ClusterPlan:
    return language_cluster(names, is_continuous=True)


@dataclass(frozen=True, slots=True)
class Case:
    """One trace and the cluster it is played on."""

    name: str
    title: str
    trace: str
    """As `docs/load.md` has it; `{data}` stands for the folder."""
    files: tuple[str, ...]
    cluster: Callable[[Sequence[str], Path], ClusterPlan]


CASES: Final = (
    Case("gentd26-day", "GenTD26, day 18, 87 image models; 4 devices with room for 3 each",
         f"gentd26-per-minute:'{{data}}/{_GENTD26}'|slice=432h:456h",
         (_GENTD26, _REQUESTS, _BASE_MODELS), _images),
    Case("gentd26-week", "GenTD26, days 14 to 21, the same cluster",
         f"gentd26-per-minute:'{{data}}/{_GENTD26}'|slice=336h:504h",
         (_GENTD26, _REQUESTS, _BASE_MODELS), _images),
    Case("huawei-day", "Huawei, day 1, five regions as models; 8 pods of 4 slots with room for 2",
         f"huawei:'{{data}}/{_HUAWEI}'|slice=24h:48h", (_HUAWEI,), _functions),
    Case("azure-llm-hour", "Azure LLM 2023, an hour, two models; 16 devices of 8 slots, room for 1;"
         " static batches", _AZURE, (_CODE, _CHAT), _language),
    Case("azure-llm-hour-continuous", "Azure LLM 2023, the same hour and cluster; continuous "
         "batching", _AZURE, (_CODE, _CHAT), _continuous_language),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TraceTask:
    """One run."""

    case: Case
    trace: str
    cluster: ClusterPlan
    policy: RoutingPolicy
    seed: int


def run(settings: Settings) -> Result:
    """Every trace that is at hand, under every routing policy."""
    seed = settings.seeds[0] if settings.seeds else 1
    notes = [f"simulated, seed {seed}; a cold start is an answer that waited for a load"]
    tasks: list[TraceTask] = []
    for case in CASES:
        if missing := [name for name in case.files if settings.file(name) is None]:
            notes.append(f"{case.name} is left out: {', '.join(missing)} not in PILOTLIGHT_DATA")
            continue
        tasks += _tasks(case, settings, seed)
    found = run_side_by_side(play_trace, tasks, settings, what="traces")
    tables = []
    for case in CASES:
        mine = [(task, each) for task, each in zip(tasks, found, strict=True)
                if task.case.name == case.name]  # fmt: skip
        if mine:
            tables.append(_table(case, mine))
    return Result(tuple(tables), tuple(notes))


def _tasks(case: Case, settings: Settings, seed: int) -> list[TraceTask]:
    data = settings.data
    assert data is not None, "its files were found there"
    text = case.trace.format(data=data)
    if settings.is_quick:
        text = f"({text})|limit={QUICK_REQUESTS}"
    names = list(summarise(open_trace(text, seed=seed)).models)
    cluster = case.cluster(names, data)
    return [TraceTask(case, text, cluster, policy, seed) for policy in RoutingPolicy]


def play_trace(task: TraceTask) -> dict[str, Any]:
    """Simulate one trace under one policy; what the simulator's summary says."""
    run = Simulation(task.cluster, open_trace(task.trace, seed=task.seed), task.policy, task.seed)
    for _ in run:
        pass
    return dict(run.summary.document())


def _table(case: Case, found: Sequence[tuple[TraceTask, dict[str, Any]]]) -> Table:
    return Table(
        case.title,
        ("policy", "requests", "answered", "cold starts", "cold-start rate", "loads", "p50 s",
         "p99 s", "idle models GB h"),
        tuple(_row(task, each) for task, each in found),
    )  # fmt: skip


def _row(task: TraceTask, told: dict[str, Any]) -> tuple[Cell, ...]:
    answered, latency = told["ok"], told["latency_s"]
    wasted = told.get("wasted_memory_byte_s")
    return (
        task.policy.value, told["requests"], f"{answered / max(1, told['requests']):.2%}",
        told["cold_starts"], f"{told['cold_starts'] / max(1, answered):.2%}",
        sum(told["loads"].values()), latency["p50"], latency["p99"],
        None if wasted is None else wasted / 3600 / 1e9,
    )  # fmt: skip


EXPERIMENT: Final = Experiment(
    "traces",
    "Real traces (GenTD26, Huawei, Azure LLM) under every routing policy",
    run,
)
