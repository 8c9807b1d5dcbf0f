"""Conversations: routing with and without what pods have computed of prompts.

Mooncake (Qin et al., FAST 2025): an hour of requests to one language model, whose prompts are known
by blocks of 512 tokens. Azure (Patel et al., ISCA 2024): an hour of a chat, whose prompts are not
known: as they are, and as if all began with the same block. The rule was chosen on the first half
hour; the second is reported.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from load.simulator.simulation import Simulation
from load.trace_spec import open_trace
from load.traces.batches import with_column
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, RoutingPolicy, Tier
from registry.domain.pod import ProfilePoint
from registry.domain.prompt_prefixes import Prompt, PromptPrefixes
from research.experiments.harness.experiment import Experiment, Result, Settings, Table
from research.experiments.harness.parallel_map import group_results, parallel_map

_MOONCAKE: Final = "mooncake_conversation.csv.gz"
_CHAT: Final = "azure_llm_2023_conv.csv.gz"
_SLOTS: Final = 16
_ITERATION_S: Final = {1: 0.0152, 2: 0.0166, 4: 0.0176, 8: 0.0196, 16: 0.0238}
"""By sequences: Llama 7B with vLLM on an A100 (Blinowski et al. 2024, its data)."""
_PREFILL_S: Final = 1e-4
"""Per token of a prompt: 8e9 parameters, 16 GFLOP, at half of an A100's 312 TFLOP/s."""
_CACHE_TOKENS: Final = 400_000
"""128 KiB per token (8 key-value heads, 32 layers) in 52 GB."""
_MODEL: Final = ModelName("default", "llm")


@dataclass(frozen=True, slots=True)
class PromptCase:
    title: str
    trace: str
    file: str
    devices: int
    is_same_start: bool = False


CASES: Final = (
    *(
        PromptCase(f"Mooncake, {devices} devices", "mooncake", _MOONCAKE, devices)
        for devices in (12, 16, 24)
    ),
    PromptCase("Azure, 4 devices, prompts not known", "azure-llm", _CHAT, 4),
    PromptCase("Azure, 4 devices, one system prompt", "azure-llm", _CHAT, 4, is_same_start=True),
)


@dataclass(frozen=True, slots=True)
class PromptTask:
    case: PromptCase
    trace: str
    policy: RoutingPolicy
    is_aware: bool


class _Unread(PromptPrefixes):
    """For runs in which requests have no prompt that the gateway reads."""

    def find(self, _key: str, _prompt: Prompt, _pods: Iterable[str]) -> None:  # type: ignore[override]
        return None


def run(settings: Settings) -> Result:
    half = "|slice=30m:60m" if not settings.is_quick else "|slice=30m:31m"
    tasks = [
        PromptTask(case, f"{case.trace}:'{path}'{half}", policy, is_aware)
        for case in CASES
        if (path := settings.file(case.file))
        for policy in (RoutingPolicy.AUTO, RoutingPolicy.COLOCATION)
        for is_aware in (False, True)
    ]
    found = parallel_map(simulate, tasks, settings, what="prompts")
    rows = group_results(
        tasks,
        [
            (task.policy.value, "yes" if task.is_aware else "no", *each.values())
            for task, each in zip(tasks, found, strict=True)
        ],
        lambda task: task.case,
    )
    columns = ("policy", "prompts known", "mean s", "first token s", "its p99 s", "cached")
    return Result(
        tuple(Table(case.title, columns, tuple(own)) for case, own in rows.items()),
        ("simulated; `cached`: share of prompts' tokens that pods had",),
    )


def simulate(task: PromptTask) -> dict[str, float]:
    trace: Iterable[pa.RecordBatch] = open_trace(task.trace, seed=1)
    if task.case.is_same_start:
        trace = _with_one_start(trace)
    simulation = Simulation(_cluster(task.case.devices), trace, task.policy, 1)
    if not task.is_aware:
        simulation.registry.state.prefixes = _Unread()
    records = pa.Table.from_batches(list(simulation))
    times: Mapping[str, np.ndarray] = {
        name: records[name].to_numpy() for name in ("scheduled_s", "first_byte_s", "finished_s")
    }
    first_s = times["first_byte_s"] - times["scheduled_s"]
    return {
        "mean_s": float(np.mean(times["finished_s"] - times["scheduled_s"])),
        "first_s": float(np.mean(first_s)),
        "first_p99_s": float(np.quantile(first_s, 0.99)),
        "cached": simulation.summary.cached_tokens / int(records["input_size"].to_numpy().sum()),
    }


def _with_one_start(trace: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in trace:
        blocks = [[0] if size > 512 else [] for size in batch["input_size"].to_pylist()]
        yield with_column(batch, "blocks", pa.array(blocks, pa.list_(pa.int64())))


def _cluster(devices: int) -> ClusterPlan:
    names = [f"gpu-{number:02d}" for number in range(devices)]
    nodes = [NodePlan(each, (PodPlan(each, slots=2 * _SLOTS),)) for each in names]
    model = ModelPlan(
        ModelSpec(_MODEL, "s3://simulated/llm", policy=ModelPolicy(queue_timeout_s=600.0)),
        infer=(ProfilePoint(1, 0.005), ProfilePoint(_SLOTS, 0.005)),
        infer_per_token=tuple(ProfilePoint(rows, s) for rows, s in _ITERATION_S.items()),
        is_continuous=True,
        counts_tokens=True,
        prefill_s=_PREFILL_S,
        cache_tokens=_CACHE_TOKENS,
        at=dict.fromkeys(names, Tier.DEVICE),
    )
    return ClusterPlan(tuple(nodes), (model,))


EXPERIMENT: Final = Experiment(
    "prompts", "Conversations: routing with and without what pods have of prompts", run
)
