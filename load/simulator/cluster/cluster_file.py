"""Cluster files: YAML to `ClusterPlan`, with all mistakes reported together.

Unknown keys and models that do not fit (`budgets`) are mistakes. See `docs/simulator.md`.
"""

from __future__ import annotations

import json
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from autoscaler.placement.planners.igniter_json import read_igniter
from autoscaler.placement.planners.problem import InvalidPlacementInput, KindCoefficients
from load.simulator.cluster.application_file import ApplicationSection, application_plans
from load.simulator.cluster.budgets import ModelGroup, fit_problems
from load.simulator.cluster.plan import ClusterPlan, ModelPlan, NodePlan, PodPlan
from load.simulator.cluster.values import duration, per_token, rate, size, start
from load.simulator.errors import InvalidCluster
from registry.domain.model import ModelName, ModelSpec, Tier
from registry.domain.profile import ProfilePoint
from registry.domain.slots import default_slots
from registry.errors import InvalidYaml
from registry.inference_service.annotations import PREFIX, parse_annotations
from registry.inference_service.strict_yaml import read_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

Size = Annotated[int, BeforeValidator(size)]
Rate = Annotated[float, BeforeValidator(rate)]
Duration = Annotated[float, BeforeValidator(duration)]
Start = Annotated[float, BeforeValidator(start)]
Times = dict[Annotated[int, Field(ge=1)], Annotated[Duration, Field(gt=0)]]
PerToken = Annotated[Times, BeforeValidator(per_token)]
_MAX_COUNT: Final = 100_000
"""Maximum number of pods, and of models."""
Count = Annotated[int, Field(ge=1, le=_MAX_COUNT, strict=True)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Pods(_Section):
    count: Count = 1
    slots: Annotated[int, Field(ge=1, le=10_000, strict=True)] = default_slots()
    memory: Size = 16 * 10**9
    speed: Annotated[float, Field(gt=0, le=1000)] = 1.0
    device_rate: Rate = 12e9
    start: Start = 0.0
    kill: Duration | None = None
    drain: Duration | None = None
    gpu: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?$")] | None = None
    share: Annotated[float, Field(gt=0, le=100)] | None = None
    model: str | None = None
    batch: Annotated[int, Field(ge=1, le=4096, strict=True)] | None = None

    @model_validator(mode="after")
    def _has_a_gpu(self) -> _Pods:
        if self.share is not None and self.gpu is None:
            raise ValueError("share needs gpu, the GPU that it is a share of")
        if self.batch is not None and self.model is None:
            raise ValueError("batch needs model, the model that the pod serves")
        return self

    @model_validator(mode="after")
    def _ends_after_it_starts(self) -> _Pods:
        for name, end_s in (("kill", self.kill), ("drain", self.drain)):
            if end_s is not None and end_s <= self.start:
                raise ValueError(f"{name} must be later than start ({self.start:g} s)")
        return self


class _Nodes(_Section):
    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?$")]
    count: Count = 1
    object_storage_rate: Rate = 1e9
    disk_rate: Rate = 2e9
    disk: Size | Literal["unlimited"] = "unlimited"
    host_memory: Size = 0
    gpus: list[str] = []
    pods: Annotated[list[_Pods], Field(min_length=1)]

    @model_validator(mode="after")
    def _has_its_pods_gpus(self) -> _Nodes:
        for name in sorted({each.gpu for each in self.pods if each.gpu is not None}):
            if name not in self.gpus:
                raise ValueError(f"gpus must name the pods' GPU {name!r}, were {self.gpus}")
        return self


class _Models(_Section):
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*(/[a-z0-9][a-z0-9.-]*)?$")]
    count: Count = 1
    size: Annotated[Size, Field(gt=0)] = 250 * 10**6
    memory: Annotated[Size, Field(gt=0)] | None = None
    annotations: dict[str, str | int | float | bool] = {}
    infer: Times = {1: 0.02}
    sm_utilization: dict[Annotated[int, Field(ge=1)], Annotated[float, Field(ge=0, le=100)]] = {}
    infer_per_token: PerToken = {}
    generation: Literal["static", "continuous"] = "static"
    preprocess: Duration = 0.001
    postprocess: Duration = 0.001
    assets: Duration = 0.1
    load_fixed: Duration = 0.05
    load: dict[Literal["host", "disk", "remote"], Duration] = {}
    at: dict[str, Literal["device", "host", "disk"]] = {}
    batching: bool = True
    input: Literal["items", "tokens"] = "items"

    @model_validator(mode="after")
    def _has_times(self) -> _Models:
        if not self.infer:
            raise ValueError(
                "infer must give a time for at least one number of rows, such as {1: 20ms}"
            )
        if self.generation == "continuous" and not self.infer_per_token:
            raise ValueError(
                "generation: continuous needs infer_per_token, the time of an iteration, "
                "such as {1: 15ms, 8: 20ms}"
            )
        if self.generation == "continuous" and not self.batching:
            raise ValueError("generation: continuous batches requests: batching must be true")
        return self


class _Pair(_Section):
    model: str
    beside: str
    factor: Annotated[float, Field(ge=1, le=1000)]


class _Network(_Section):
    gateway_hop: Duration = 0.0002
    pod_hop: Duration = 0.002


class _Cluster(_Section):
    nodes: Annotated[list[_Nodes], Field(min_length=1)]
    models: Annotated[list[_Models], Field(min_length=1)]
    network: _Network = _Network()
    eviction: Literal["lru", "greedy-dual"] = "greedy-dual"
    heartbeat: Annotated[Duration, Field(gt=0)] = 1.0
    interference: Literal["none", "overlap", "table", "igniter"] = "none"
    pairs: list[_Pair] = []
    igniter: dict[str, Any] = {}
    applications: list[ApplicationSection] = []
    jitter: Annotated[float, Field(ge=0, le=2)] = 0.0

    @model_validator(mode="after")
    def _uses_its_pairs(self) -> _Cluster:
        if bool(self.pairs) != (self.interference == "table"):
            raise ValueError("interference: table needs pairs, and only it reads them")
        if bool(self.igniter) != (self.interference == "igniter"):
            raise ValueError(
                "interference: igniter needs the mapping igniter, with hardware and models as in "
                "iGniter's file of measurements, and only it reads it"
            )
        return self


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
        read = _Cluster.model_validate(document)
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
    problems += _unknown_models(nodes, models)
    coefficients = _igniter(read.igniter, models, problems)
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
        pairs=tuple((each.model, each.beside, each.factor) for each in read.pairs),
        igniter=coefficients,
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


def _too_many(read: _Cluster) -> list[str]:
    pods = sum(node.count * pod.count for node in read.nodes for pod in node.pods)
    models = sum(group.count for group in read.models)
    return [
        f"{kind}: must be at most {_MAX_COUNT:,} in total, was {count:,}"
        for kind, count in (("pods", pods), ("models", models))
        if count > _MAX_COUNT
    ]


def _numbered(name: str, number: int, count: int) -> str:
    return name if count == 1 else f"{name}-{number:0{len(str(count - 1))}d}"


def _node(group: _Nodes, number: int) -> NodePlan:
    name = _numbered(group.name, number, group.count)
    pods: list[PodPlan] = []
    total = sum(each.count for each in group.pods)
    for each in group.pods:
        for _ in range(each.count):
            pods.append(PodPlan(
                f"{name}-{len(pods)}" if total > 1 else name, each.slots, each.memory,
                each.speed, each.device_rate, each.start, each.kill, each.drain,
                each.gpu or "", each.share, _full_name(each.model), each.batch,
            ))  # fmt: skip
    return NodePlan(
        name=name,
        pods=tuple(pods),
        object_storage_bytes_per_s=group.object_storage_rate,
        disk_bytes_per_s=group.disk_rate,
        disk_bytes=inf if group.disk == "unlimited" else float(group.disk),
        host_memory_bytes=group.host_memory,
    )


def _full_name(model: str | None) -> str:
    return "" if model is None else str(ModelName.parse(model))


def _models(group: _Models, field: str, problems: list[str]) -> list[ModelPlan]:
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
                counts_tokens=group.input == "tokens",
                sm_utilization=tuple(sorted(group.sm_utilization.items())),
            )
        )
    return plans


def _at(group: _Models) -> dict[str, Tier]:
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


def _igniter(
    measured: Mapping[str, Any], models: Sequence[ModelPlan], problems: list[str]
) -> KindCoefficients | None:
    """Fitted to the measurements, by the models' full names; None without measurements."""
    if not measured:
        return None
    try:
        found = read_igniter(json.dumps(measured), kind="", file="igniter")
    except (InvalidPlacementInput, TypeError, ValueError) as error:
        problems += getattr(error, "problems", [f"igniter: {error}"])
        return None
    known = {_full_name(name): each for name, each in found.models.items()}
    problems += [
        f"igniter: must have measurements of every model, has none of {each.spec.name}"
        for each in models
        if str(each.spec.name) not in known
    ]
    return KindCoefficients(found.kind, found.hardware, known)


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
