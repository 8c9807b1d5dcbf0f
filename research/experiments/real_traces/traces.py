"""The experiment traces: public traces under every routing policy.

GenTD26 (Lin et al., SoCC 2025): a day and a week of requests to 87 image models. Huawei (Joosen et
al., EuroSys 2025): a day of five regions, with cold starts per minute in place of requests. Azure
(Patel et al., ISCA 2024): an hour of requests to two language models.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from load.simulator.cluster.plan import ClusterPlan
from load.simulator.simulation import Simulation
from load.trace_spec.trace_spec import open_trace
from load.traces.batches import summarise
from registry.domain.model import RoutingPolicy
from research.experiments.harness.experiment import Cell, Experiment, Result, Settings, Table
from research.experiments.harness.parallel_map import group_results, parallel_map
from research.experiments.real_traces.clusters import (
    BASE_MODELS_FILE,
    REQUESTS_FILE,
    function_cluster,
    image_cluster,
    language_cluster,
)

ClusterBuilder = Callable[[Sequence[str], Path], ClusterPlan]
"""The cluster for full names of models, with figures of the data folder."""


_GENTD26: Final = "gentd26_per_minute.csv.gz"
_HUAWEI: Final = "huawei_cold_starts_per_minute.csv.gz"
_CODE: Final = "azure_llm_2023_code.csv.gz"
_CHAT: Final = "azure_llm_2023_conv.csv.gz"
_AZURE: Final = f"azure-llm:'{{data}}/{_CODE}',model=code + azure-llm:'{{data}}/{_CHAT}',model=chat"
QUICK_REQUESTS: Final = 200
_COMPARED: Final = tuple(RoutingPolicy)


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
        "policy", "requests", "answered", "cold starts", "cold-start rate", "loads", "p50 s",
        "p99 s", "idle models GB h",
    )  # fmt: skip
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
        task.policy.value, requests, f"{ok / max(1, requests):.2%}",
        summary["cold_starts"], f"{summary['cold_starts'] / max(1, ok):.2%}",
        sum(summary["loads"].values()), latency["p50"], latency["p99"],
        None if wasted is None else wasted / 3600 / 1e9,
    )  # fmt: skip


EXPERIMENT: Final = Experiment(
    "traces", "Real traces (GenTD26, Huawei, Azure LLM) under every routing policy", run
)
