"""Cluster files: YAML to `ClusterPlan`, with all mistakes reported together.

Unknown keys and models that do not fit (`budgets`) are mistakes. See `docs/simulator.md`.
"""

from math import inf
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from load.errors import InvalidCluster
from load.simulator.cluster.budgets import ModelGroup, fit_problems
from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from load.simulator.cluster.sections import (
    MAX_COUNT,
    ClusterSection,
    ModelsSection,
    NodesSection,
    Times,
    application_plans,
)
from registry.domain.model import ModelName, ModelSpec, Tier
from registry.domain.pod import ProfilePoint
from registry.errors import InvalidYaml
from registry.inference_service.annotations import PREFIX, parse_annotations
from registry.inference_service.documents import read_yaml


def read_document(path: Path) -> Any:
    """The content of a YAML file. Raises InvalidCluster if it cannot be read."""
    try:
        documents = read_yaml(path.read_text())
    except OSError as error:
        raise InvalidCluster([f"{path}: cannot be read: {error.strerror}"]) from error
    except (InvalidYaml, UnicodeDecodeError) as error:
        raise InvalidCluster([f"{path}: {error}"]) from error
    if len(documents) != 1:
        raise InvalidCluster([f"{path}: must contain one YAML document, has {len(documents)}"])
    return documents[0]


def cluster_of(document: Any, *, source: str) -> ClusterPlan:
    """`source` names the document in error messages. Raises InvalidCluster with every mistake."""
    if not isinstance(document, dict):
        raise InvalidCluster([f"{source}: must be a mapping with nodes and models"])
    try:
        read = ClusterSection.model_validate(document)
    except ValidationError as error:
        raise InvalidCluster([_problem(source, each) for each in error.errors()]) from None
    problems = _too_many(read)
    if problems:
        raise InvalidCluster([f"{source}: {problem}" for problem in problems])
    nodes = tuple(_node(each, number) for each in read.nodes for number in range(each.count))
    models: list[ModelPlan] = []
    groups = []
    for place, group in enumerate(read.models):
        field, memory = f"models[{place}]", group.memory or group.size
        models += _models(group, field, problems)
        groups.append(ModelGroup(field, group.count, group.size, memory, _at(group)))
    problems += [*fit_problems(nodes, groups), *_duplicate_names(nodes, models)]
    problems += [*_unknown_models(nodes, models), *_unlike_machines(nodes)]
    applications = application_plans(read.applications, models, problems)
    if problems:
        raise InvalidCluster([f"{source}: {problem}" for problem in problems])
    return ClusterPlan(
        nodes=nodes,
        models=tuple(models),
        gateway_hop_s=read.network.gateway_hop,
        pod_hop_s=read.network.pod_hop,
        eviction=read.eviction,
        heartbeat_s=read.heartbeat,
        interference=read.interference,
        applications=applications,
        jitter=read.jitter,
    )


def _problem(source: str, error: Any) -> str:
    field = ""
    for part in error["loc"]:
        field += f"[{part}]" if isinstance(part, int) else f".{part}" if field else str(part)
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = "is not a known key"
    seen = "" if error["type"] == "missing" else f", was {str(error['input'])[:80]!r}"
    return f"{source}: {field or 'the file'}: {message}{seen}"


def _too_many(read: ClusterSection) -> list[str]:
    pods = sum(node.count * pod.count for node in read.nodes for pod in node.pods)
    models = sum(group.count for group in read.models)
    return [
        f"{kind}: must be at most {MAX_COUNT:,} in total, was {count:,}"
        for kind, count in (("pods", pods), ("models", models))
        if count > MAX_COUNT
    ]


def _numbered(name: str, number: int, count: int) -> str:
    return name if count == 1 else f"{name}-{number:0{len(str(count - 1))}d}"


def _node(group: NodesSection, number: int) -> NodePlan:
    name = _numbered(group.name, number, group.count)
    pods: list[PodPlan] = []
    total = sum(each.count for each in group.pods)
    for each in group.pods:
        for _ in range(each.count):
            pods.append(
                PodPlan(
                    f"{name}-{len(pods)}" if total > 1 else name,
                    each.slots,
                    each.memory,
                    each.speed,
                    each.device_rate,
                    each.start,
                    each.kill,
                    each.drain,
                    each.gpu or "",
                    each.share,
                    _full_name(each.model),
                    each.batch,
                )
            )
    return NodePlan(
        name=name,
        pods=tuple(pods),
        object_storage_bytes_per_s=group.object_storage_rate,
        disk_bytes_per_s=group.disk_rate,
        disk_bytes=inf if group.disk == "unlimited" else float(group.disk),
        host_memory_bytes=group.host_memory,
        machine=group.machine or name,
        all_cores_speed=group.all_cores_speed,
        cores=inf if group.cores == "unlimited" else float(group.cores),
    )


def _full_name(model: str | None) -> str:
    return "" if model is None else str(ModelName.parse(model))


def _models(group: ModelsSection, field: str, problems: list[str]) -> list[ModelPlan]:
    texts = {
        key if key.startswith(PREFIX) else PREFIX + key: _text(value)
        for key, value in group.annotations.items()
    }
    parsed = parse_annotations(texts)
    problems += [f"{field}: {problem}" for problem in parsed.problems]
    base = ModelName.parse(group.name)
    plans = []
    for number in range(group.count):
        name = ModelName(base.namespace, _numbered(base.name, number, group.count))
        plans.append(
            ModelPlan(
                spec=ModelSpec(name, f"s3://simulated/{name}", policy=parsed.policy),
                size_bytes=group.size,
                memory_bytes=group.memory or group.size,
                infer=_points(group.infer),
                infer_per_token=_points(group.infer_per_token),
                preprocess_s=group.preprocess,
                postprocess_s=group.postprocess,
                assets_s=group.assets,
                load_fixed_s=group.load_fixed,
                load_s={Tier(tier): seconds for tier, seconds in group.load.items()},
                at=_at(group),
                is_batched=group.batching,
                is_continuous=group.generation == "continuous",
                prefill_s=group.prefill,
                cache_tokens=group.prefix_cache,
                counts_tokens=group.input == "tokens",
                infer_cores=tuple(sorted(group.infer_cores.items())),
                load_cpu_s={Tier(tier): seconds for tier, seconds in group.load_cpu.items()},
                sm_utilization=tuple(sorted(group.sm_utilization.items())),
            )
        )
    return plans


def _at(group: ModelsSection) -> dict[str, Tier]:
    return {pod: Tier(tier) for pod, tier in group.at.items()}


def _points(times_s: Times) -> tuple[ProfilePoint, ...]:
    return tuple(ProfilePoint(rows, latency_s) for rows, latency_s in sorted(times_s.items()))


def _text(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unknown_models(nodes: tuple[NodePlan, ...], models: list[ModelPlan]) -> list[str]:
    known = {str(model.spec.name) for model in models}
    return [
        f"nodes: pod {pod.name}: model must be one of models, was {pod.placed_model!r}"
        for node in nodes
        for pod in node.pods
        if pod.placed_model and pod.placed_model not in known
    ]


_OF_MACHINES: Final = (
    ("cores", "cores"), ("all_cores_speed", "all_cores_speed"), ("disk_rate", "disk_bytes_per_s"),
)  # fmt: skip
"""Keys of nodes, and fields of NodePlan."""


def _unlike_machines(nodes: tuple[NodePlan, ...]) -> list[str]:
    first: dict[str, NodePlan] = {}
    return [
        f"nodes: {node.name} and {other.name} are on machine {node.machine!r}: {key} must be the "
        f"same, was {getattr(other, field):g} and {getattr(node, field):g}"
        for node in nodes
        for key, field in _OF_MACHINES
        if (other := first.setdefault(node.machine, node)) is not node
        and getattr(other, field) != getattr(node, field)
    ]


def _duplicate_names(nodes: tuple[NodePlan, ...], models: list[ModelPlan]) -> list[str]:
    problems = []
    seen: set[tuple[str, str]] = set()
    for kind, name in [
        *(("nodes: machine", node.name) for node in nodes),
        *(("nodes: pod", pod.name) for node in nodes for pod in node.pods),
        *(("models: model", str(model.spec.name)) for model in models),
    ]:
        if (kind, name) in seen:
            problems.append(f"{kind} names must be unique, {name!r} occurs twice")
        seen.add((kind, name))
    return problems
