"""The running platform as a cluster file of the simulator: pods, models, and their measured times.

What was not measured keeps the simulator's defaults. Rates of links and disks are not known to the
registry: measured times of loads take their place.
"""

from collections import defaultdict
from typing import Any, Final

import yaml

from registry.domain.cluster import ClusterState
from registry.domain.model import ModelSpec, Tier
from registry.domain.pod_state import PodState
from registry.inference_service.annotations import PREFIX
from registry.inference_service.predictors import needs_in_pool

LIVE: Final = "live"
"""Value of `--cluster` for the running platform."""
_LOADS: Final = (Tier.HOST, Tier.DISK, Tier.REMOTE)
_STAGES: Final = ("preprocess", "postprocess")


def live_cluster_file(state: ClusterState, *, more_pods: int = 0) -> str:
    """YAML of the platform as it is now.

    Args:
        state: of a platform with a pod that accepts requests.
        more_pods: pods to add, each on a node of its own like the last pod's; below 0: the last
            ones are left out, except for one.
    """
    pods = sorted((each for each in state.pods.values() if each.is_accepting), key=_name)
    pods = pods[: max(len(pods) + min(more_pods, 0), 1)]
    by_node: defaultdict[str, list[PodState]] = defaultdict(list)
    for pod in pods:
        by_node[pod.node].append(pod)
    simulated = {
        pod.name: pod.name if len(group) == 1 else f"{node}-{index}"
        for node, group in by_node.items()
        for index, pod in enumerate(group)
    }
    document = {
        "nodes": [
            *(_node(node, group) for node, group in sorted(by_node.items())),
            *(_node("", pods[-1:]) | {"name": f"added-{index}"} for index in range(more_pods)),
        ],
        "models": [
            _model(state, record.serving, simulated)
            for _, record in sorted(state.models.items())
            if record.failure is None
            and not needs_in_pool(record.spec, has_server=state.has_server)
        ],
    }
    return yaml.safe_dump(document, sort_keys=False)


def _name(pod: PodState) -> str:
    return pod.name


def _node(name: str, pods: list[PodState]) -> dict[str, Any]:
    host_bytes = max(int(pod.used_bytes.get(Tier.HOST, 0)) for pod in pods)
    node: dict[str, Any] = {
        "name": pods[0].name if len(pods) == 1 else name,
        "pods": [
            {"slots": pod.slots, **({"memory": pod.memory_bytes} if pod.memory_bytes else {})}
            for pod in pods
        ],
    }
    if pods[0].info.link_bytes_per_s:
        node["object_storage_rate"] = f"{int(pods[0].info.link_bytes_per_s)}/s"
    if host_bytes:
        node["host_memory"] = host_bytes
    return node


def _model(state: ClusterState, spec: ModelSpec, pods: dict[str, str]) -> dict[str, Any]:
    holders = state.holders(spec.key)
    measured = state.measured(spec.key)
    model: dict[str, Any] = {"name": str(spec.name)}
    size = max((each.size_bytes for each in holders.values()), default=0)
    size = size or state.residency.device_bytes.get(spec.key, 0)
    if size:
        model["size"] = size
    if infer := _infer(state, spec):
        model["infer"] = infer
    for stage in _STAGES:
        if (seconds := measured.median_s(stage)) is not None:
            model[stage] = _duration(seconds)
    loads = {str(tier): measured.median_s(f"load:{tier}") for tier in _LOADS}
    if known := {tier: _duration(each) for tier, each in loads.items() if each is not None}:
        model["load"] = known
    if held := {
        pods[pod]: str(each.tier)
        for pod, each in holders.items()
        if pod in pods and each.tier is not Tier.REMOTE  # it is being loaded
    }:
        model["at"] = held
    if own := {key: text for key, text in spec.annotations if key.startswith(PREFIX)}:
        model["annotations"] = own
    return model


def _infer(state: ClusterState, spec: ModelSpec) -> dict[int, str]:
    """Times by rows: of a profile, else of single requests."""
    for profile in state.profiles_of(spec.key):
        return {point.rows: _duration(point.latency_s) for point in profile.points}
    seconds = state.measured(spec.key).median_s("infer")
    return {} if seconds is None else {1: _duration(seconds)}


def _duration(seconds: float) -> str:
    return f"{max(round(seconds * 1e6), 1)}us"
