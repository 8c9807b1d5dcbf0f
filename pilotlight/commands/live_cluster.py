"""The running platform, and a run of `load run`, as a cluster file of the simulator.

Times are those of work that has the cores for itself, since simulated pods of one machine share
its cores: an inference of a CPU pod takes its CPU time, a load or a stage the lower quartile of
its measurements, which others slowed down least. How the constants were chosen, and how far
simulated runs are from live ones: `docs/simulator.md`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from pilotlight.platform.machine import Machine
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelSpec, Tier
from registry.domain.pod import IN_SERVICE
from registry.domain.pod_state import PodState
from registry.inference_service.annotations import PREFIX
from registry.inference_service.predictors import needs_in_pool

_LOADS: Final = (Tier.HOST, Tier.DISK, Tier.REMOTE)
_STAGES: Final = ("preprocess", "postprocess")
_LOCAL: Final = "local"
"""The machine of pods on loopback addresses: they share its cores, whatever their nodes."""
_UNDISTURBED: Final = 0.25
"""Quantile of the measurements on shared cores that counts as a time on idle ones."""
_COLD_CACHES: Final = 1.12
"""An inference in service against one of a profile, which repeats one model's on warm caches: the
factor at which the half `fit` of `benchmarks fidelity` deviates least."""
_DOWNLOAD_CPU_S_PER_BYTE: Final = 3.2e-9
"""Of pod and object store together, measured on two cores of an AMD EPYC; the rest of a download is
the link's. Loads from the other tiers keep a core busy."""
_LOCAL_HOP_S: Final = 0.0015
"""A warm request beside its stages, each way, on one machine (`docs/simulator.md`)."""


def live_cluster_file(
    state: ClusterState,
    *,
    more_pods: int = 0,
    hop_s: float | None = None,
    start: ClusterState | None = None,
    machine: Machine | None = None,
) -> str:
    """YAML of the platform as it is now, as a cluster file of the simulator.

    What was not measured keeps the simulator's defaults. Measured times of loads take the place of
    rates, but for downloads over a link with a limit, which pods share.

    Args:
        state: of a platform with a pod that accepts requests.
        more_pods: pods to add, each on a node of its own like the last pod's; below 0: the last
            ones are left out; one must remain.
        hop_s: measured time of a request outside its stages, each way.
        machine: the one of local pods, as measured; None: their cores only, at full speed.
        start: the state that says where models are; None: `state`, which has the measured times.
    """
    pods = sorted(
        (each for each in state.pods.values() if each.is_accepting), key=lambda pod: pod.name
    )
    pods = pods[: len(pods) + min(more_pods, 0)]
    by_node: defaultdict[str, list[PodState]] = defaultdict(list)
    for pod in pods:
        by_node[pod.node].append(pod)
    simulated = {
        pod.name: pod.name if len(group) == 1 else f"{node}-{index}"
        for node, group in by_node.items()
        for index, pod in enumerate(group)
    }
    shares_cores = all(map(_is_local, pods))
    models = [
        record.serving
        for _, record in sorted(state.models.items())
        if record.failure is None and not needs_in_pool(record.spec, has_server=state.has_server)
    ]
    link = _link_bytes_per_s(state, pods, models)
    if shares_cores and hop_s is None:
        hop_s = _LOCAL_HOP_S
    document = {
        "nodes": [
            *(_node(node, group, machine, link) for node, group in sorted(by_node.items())),
            *(
                _node("", pods[-1:], machine, link) | {"name": f"added-{index}"}
                for index in range(more_pods)
            ),
        ],
        "models": [
            _model(state, each, machine if shares_cores else None, link, shares_cores=shares_cores)
            | _held(start or state, each, simulated)
            for each in models
        ],
        **({} if hop_s is None else {"network": {"gateway_hop": _duration(hop_s)}}),
    }
    return yaml.safe_dump(document, sort_keys=False)


def _is_local(pod: PodState) -> bool:
    """Whether it is a CPU pod of one machine's platform."""
    info = pod.info
    is_loopback = info.address.startswith(("127.", "[::1]", "localhost"))
    return info.device == "cpu" and bool(info.accelerator.cores) and is_loopback


def _link_bytes_per_s(
    state: ClusterState, pods: Sequence[PodState], models: Sequence[ModelSpec]
) -> float | None:
    """The limit of a pod's downloads, or the rate of a load that was faster by its burst."""
    if not pods[0].info.link_bytes_per_s:
        return None
    measured = [
        (_size(state, each), state.measured(each.key).quantile_s("load:remote", _UNDISTURBED))
        for each in models
    ]
    rates = [size / seconds for size, seconds in measured if seconds]
    return max(pods[0].info.link_bytes_per_s, *rates) if rates else pods[0].info.link_bytes_per_s


def _size(state: ClusterState, spec: ModelSpec) -> int:
    """Bytes of the model where it is, or last was; 0: unknown."""
    held = max((each.size_bytes for each in state.holders(spec.key).values()), default=0)
    return held or state.residency.device_bytes.get(spec.key, 0)


def _node(
    name: str, pods: list[PodState], machine: Machine | None, link: float | None
) -> dict[str, Any]:
    host_bytes = max(int(pod.used_bytes.get(Tier.HOST, 0)) for pod in pods)
    node: dict[str, Any] = {
        "name": pods[0].name if len(pods) == 1 else name,
        "pods": [
            {"slots": pod.slots, **({"memory": pod.memory_bytes} if pod.memory_bytes else {})}
            for pod in pods
        ],
    }
    if link is not None:
        node["object_storage_rate"] = f"{int(link)}/s"
    if host_bytes:
        node["host_memory"] = host_bytes
    if all(map(_is_local, pods)):
        node |= {"machine": _LOCAL, "cores": pods[0].info.accelerator.cores}
        if machine is not None:
            node["all_cores_speed"] = machine.all_cores_speed
            node["disk_rate"] = f"{int(machine.disk_bytes_per_s)}/s"
    return node


def _held(state: ClusterState, spec: ModelSpec, pods: Mapping[str, str]) -> dict[str, Any]:
    """The pods that hold the model, but for those that are loading it."""
    held = {
        pods[pod]: str(each.tier)
        for pod, each in state.holders(spec.key).items()
        if pod in pods and each.tier is not Tier.REMOTE
    }
    return {"at": held} if held else {}


def _model(
    state: ClusterState,
    spec: ModelSpec,
    machine: Machine | None,
    link: float | None,
    *,
    shares_cores: bool,
) -> dict[str, Any]:
    measured = state.measured(spec.key)
    share = _UNDISTURBED if shares_cores else 0.5
    model: dict[str, Any] = {"name": str(spec.name)}
    size = _size(state, spec)
    if size:
        model["size"] = size
    model |= _infer(state, spec, shares_cores=shares_cores)
    for stage in _STAGES:
        if (seconds := measured.quantile_s(stage, share)) is not None:
            model[stage] = _duration(seconds)
    loads = {tier: measured.quantile_s(f"load:{tier}", share) for tier in _LOADS}
    remote_s = loads[Tier.REMOTE]
    if remote_s is not None and size and shares_cores:
        cpu_s = min(remote_s, size * _DOWNLOAD_CPU_S_PER_BYTE)
        model["load_cpu"] = {str(Tier.REMOTE): _duration(cpu_s)}
    if remote_s is not None and size and link:
        # Concurrent downloads share the link: only the rest of a load is constant.
        del loads[Tier.REMOTE]
        model["load_fixed"] = _duration(remote_s - size / link)
    if loads[Tier.DISK] is None and (host_s := loads[Tier.HOST]) is not None and machine:
        loads[Tier.DISK] = host_s + size / machine.disk_bytes_per_s
    if known := {str(tier): _duration(each) for tier, each in loads.items() if each is not None}:
        model["load"] = known
    if own := {key: text for key, text in spec.annotations if key.startswith(PREFIX)}:
        model["annotations"] = own
    return model


def _infer(state: ClusterState, spec: ModelSpec, *, shares_cores: bool) -> dict[str, Any]:
    """Times and cores by rows: of a profile, else of single requests."""
    for profile in state.profiles_of(spec.key):
        if not shares_cores:
            return {"infer": {each.rows: _duration(each.latency_s) for each in profile.points}}
        slower = 1.0 if profile.source == IN_SERVICE else _COLD_CACHES
        alone_s = {  # on idle cores: with one thread its CPU time
            each.rows: slower * min(each.latency_s, each.cpu_s or each.latency_s)
            for each in profile.points
        }
        cores = {
            each.rows: round(slower * each.cpu_s / alone_s[each.rows], 1)
            for each in profile.points
            if each.cpu_s
        }
        found: dict[str, Any] = {
            "infer": {rows: _duration(seconds) for rows, seconds in alone_s.items()}
        }
        if any(each > 1.1 for each in cores.values()):
            found["infer_cores"] = cores
        return found
    seconds = state.measured(spec.key).quantile_s("infer", _UNDISTURBED if shares_cores else 0.5)
    return {} if seconds is None else {"infer": {1: _duration(seconds)}}


def _duration(seconds: float) -> str:
    return f"{max(round(seconds * 1e6), 1)}us"
