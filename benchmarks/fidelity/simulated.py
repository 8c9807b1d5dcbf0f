"""The settings' simulation, in a cluster that was measured before the live runs."""

import random
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

import pyarrow as pa
import yaml

from benchmarks.fidelity.live import Outcome
from benchmarks.fidelity.settings import Arrival, Setting
from load.schema import TRACE_SCHEMA
from load.simulator.autoscaling import LoadingOptions
from load.simulator.cluster.cluster_file import cluster_of
from load.simulator.simulation import Simulation
from registry.domain.model import name_of_key
from registry.domain.pod import STAGES

_SIMULATED: Final = ("load", "preprocess", "infer", "postprocess")
"""Stages; what a single request takes beside them are hops."""


def cluster_document(facts: Mapping[str, Any], setting: Setting) -> dict[str, Any]:
    """The cluster file of a measured platform at the start of a setting.

    `facts` are of `LiveShape.measure`: what `live_cluster_file` wrote, and what it cannot know.
    """
    document: dict[str, Any] = yaml.safe_load(facts["cluster_file"])
    document["applications"] = [
        each | {"spec": each["spec"] | {"policy": setting.policy}}
        for each in facts.get("applications", [])
    ]
    shape = setting.shape
    pods = [node["name"] for node in document["nodes"]]
    size = max(model["size"] for model in document["models"])
    for node in document["nodes"]:
        node["host_memory"] = round(shape.host_places * 1.05 * size)
    pooled = _pooled_loads(document["models"])
    loaded: dict[str, Any] = next((each for each in document["models"] if "load_fixed" in each), {})
    for model in document["models"]:
        model["load"] = pooled | model.get("load", {})
        for key in loaded.keys() & {"load_fixed", "load_cpu"}:
            model.setdefault(key, loaded[key])
        model["at"] = dict.fromkeys(pods, "device") if setting.is_warm else {}
    local_s, proxied_s = (
        [
            each["latency_s"] - sum(each["stages_s"].get(stage, 0.0) for stage in _SIMULATED)
            for each in facts["requests"]
            if each["start"] == "warm" and (each["pod"] != each["predict_pod"]) is is_proxied
        ]
        for is_proxied in (False, True)
    )
    hops_s = max(0.0, median(local_s))
    document["network"] = {"gateway_hop": f"{hops_s / 2 * 1e6:.0f}us"}
    if proxied_s:
        between_s = max(0.0, median(proxied_s) - hops_s)
        document["network"]["pod_hop"] = f"{between_s * 1e6:.0f}us"
    return document


def _pooled_loads(models: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Times by tier, for models that were never loaded from there: most have the same weights."""
    found: dict[str, list[float]] = {}
    for model in models:
        for tier, text in model.get("load", {}).items():
            found.setdefault(tier, []).append(float(text.removesuffix("us")))
    return {tier: f"{median(each):.0f}us" for tier, each in found.items()}


def simulated(
    facts: Mapping[str, Any],
    setting: Setting,
    arrivals: Sequence[Arrival],
    known_s: Mapping[str, Mapping[str, float]],
) -> tuple[list[Outcome], int]:
    """Outcomes in the order of arrivals, and the number of loads.

    `known_s`: the live registry's estimates at the start, by model key and measure.
    """
    plan = cluster_of(cluster_document(facts, setting), source=setting.name)
    loading = setting.shape.loading
    scaler = LoadingOptions(loading, setting.shape.loading_value) if loading else None
    run = Simulation(
        plan,
        [_trace(setting, arrivals)],
        None if setting.shape.application else setting.policy,
        setting.seed,
        autoscaler=None if scaler is None else scaler.new_autoscaler(plan),
        draws=(random.Random(each.seed).random() for each in arrivals),
    )
    times_s = {name_of_key(key): each for key, each in known_s.items()}
    specs = (record.serving for record in run.registry.state.models.values())
    run.set_measured_times({spec.key: times_s[spec.name] for spec in specs})
    rows = [row for batch in run for row in batch.to_pylist()]
    rows.sort(key=lambda row: float(row["scheduled_s"]))
    return [_outcome(row) for row in rows], sum(run.summary.loads.values())


def _outcome(row: Mapping[str, Any]) -> Outcome:
    return Outcome(
        row["finished_s"] - row["scheduled_s"],
        row["start"] or "",
        pod=row["entry_pod"] or "",
        predict_pod=row["predict_pod"] or "",
        reason=row["reason"] or "",
        stages_s={stage: row[f"{stage}_ms"] / 1000 for stage in STAGES},
        error="" if row["status"] == 200 else str(row["error"] or row["status"]),
    )


def _trace(setting: Setting, arrivals: Sequence[Arrival]) -> pa.RecordBatch:
    count = len(arrivals)
    targets = setting.shape.targets
    names = [targets[each.model] for each in arrivals]
    columns = [
        pa.array([each.at_s for each in arrivals], pa.float64()),
        pa.array(["default"] * count).dictionary_encode(),
        pa.array(names).dictionary_encode(),
        pa.array([1] * count, pa.int64()),
        pa.array([0] * count, pa.int64()),
        pa.nulls(count, pa.float64()),
        pa.nulls(count, TRACE_SCHEMA.field("blocks").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=TRACE_SCHEMA)
