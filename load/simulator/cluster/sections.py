"""The keys of a cluster file: their syntax, defaults, and what contradicts within an entry.

Sizes, rates, durations and times by rows are texts; each parser raises ValueError, which says what
is allowed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from common.sizes import parse_duration_s, parse_rate, parse_size
from load.simulator.cluster.plan import ApplicationExamples, ApplicationPlan, ModelPlan
from registry.domain.application import KIND, ApplicationSpec, parse_confusion
from registry.domain.pod import default_slots
from registry.errors import InvalidModel
from variants.application import API_VERSION, read_application
from variants.labelled_examples import InvalidExamples, read_examples, read_predictions
from variants.look_files import InvalidSneakPeek, SneakPeekModel, read_for
from variants.planning.window import profiled_accuracy

# Reads the applications of a cluster file, and the files that it names for them.


_FILE: Final = "file://"


class ApplicationSection(BaseModel):
    """An entry of `applications` in a cluster file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*(/[a-z0-9][a-z0-9-]*)?$")]
    spec: dict[str, Any]
    profile: str | dict[str, list[list[int]]]
    """A file that `pilotlight profile APP --export` wrote, or confusion matrices by variant."""
    examples: str | None = None


def application_plans(
    sections: Sequence[ApplicationSection], models: Sequence[ModelPlan], problems: list[str]
) -> tuple[ApplicationPlan, ...]:
    """Plans of the sections without mistakes; adds a text for each mistake."""
    found = []
    for at, section in enumerate(sections):
        mistakes: list[str] = []
        plan = _plan(section, models, mistakes)
        problems += [f"applications[{at}]: {each}" for each in mistakes]
        if plan is not None and not mistakes:
            found.append(plan)
    return tuple(found)


def _plan(
    section: ApplicationSection, models: Sequence[ModelPlan], problems: list[str]
) -> ApplicationPlan | None:
    spec = _spec(section, problems)
    if spec is None:
        return None
    if any(each.spec.name == spec.name for each in models):
        problems.append(f"name must not be that of a model, was {section.name!r}")
    variants = [
        each.spec.name.name
        for each in models
        if each.spec.name.namespace == spec.name.namespace
        and each.spec.policy.application == spec.name.name
    ]
    if not variants:
        problems.append(
            f"has no variants: give models the annotation application: {spec.name.name}"
        )
    confusions = _confusions(section, spec, variants, problems)
    look = _look(spec, problems)
    return ApplicationPlan(
        spec,
        confusions,
        _examples(section, spec, variants, look, problems),
        None if look is None else profiled_accuracy(look.confusion),
    )


def _spec(section: ApplicationSection, problems: list[str]) -> ApplicationSpec | None:
    namespace, _, name = section.name.rpartition("/")
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "spec": section.spec,
        "metadata": {"name": name} | ({"namespace": namespace} if namespace else {}),
    }
    try:
        return read_application(document, section.name)
    except InvalidModel as error:
        problems += error.problems
        return None


def _confusions(
    section: ApplicationSection, spec: ApplicationSpec, variants: Sequence[str], problems: list[str]
) -> dict[str, tuple[tuple[int, ...], ...]]:
    rows: Mapping[str, Any]
    if isinstance(section.profile, str):
        try:
            document = json.loads(Path(section.profile).read_text())
            rows = {name: each["confusion"] for name, each in document["variants"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            problems.append(
                f"profile: {section.profile} is not what `pilotlight profile --export` writes: "
                f"{error}"
            )
            return {}
    else:
        rows = section.profile
    found = {}
    for name in variants:
        try:
            found[name] = parse_confusion(rows.get(name), len(spec.classes))
        except ValueError as error:
            shown = str(rows.get(name))[:80]
            problems.append(f"profile: variant {name} must have {error}, was {shown}")
    return found


def _look(spec: ApplicationSpec, problems: list[str]) -> SneakPeekModel | None:
    if spec.sneak_peek is None:
        return None
    if not spec.sneak_peek.uri.startswith(_FILE):
        problems.append(f"spec.sneakPeek.uri must begin with {_FILE}, was {spec.sneak_peek.uri!r}")
        return None
    try:
        return read_for(spec, Path(spec.sneak_peek.uri.removeprefix(_FILE)))
    except InvalidSneakPeek as error:
        problems.append(f"spec.sneakPeek: {error}")
        return None


def _examples(
    section: ApplicationSection,
    spec: ApplicationSpec,
    variants: Sequence[str],
    look: SneakPeekModel | None,
    problems: list[str],
) -> ApplicationExamples | None:
    if section.examples is None:
        return None
    path = Path(section.examples)
    names = list(look.inputs) if look is not None else [each.name for each in spec.inputs]
    try:
        given = read_examples(
            path, classes=len(spec.classes), inputs=names, needs_every_class=False
        )
        predicted = read_predictions(path, variants, classes=len(spec.classes))
    except InvalidExamples as error:
        problems += error.problems
        return None
    evidence: list[tuple[float, ...]] = []
    if look is not None:
        rows, width = given.features(), look.examples.centre.shape[0]
        if rows.shape[1] == width:
            evidence = [tuple(each) for each in look.examples.evidence(rows).tolist()]
        else:
            problems.append(f"{path}: must have {width} numbers per row, had {rows.shape[1]}")
    columns = {name: labels.tolist() for name, labels in predicted.items()}
    return ApplicationExamples(given.labels.tolist(), columns, evidence)


def _size(value: Any) -> int:
    """Bytes, from text such as 250MB or 4Gi."""
    return parse_size(str(value))


def _rate(value: Any) -> float:
    """Bytes per second, from text such as 100MB/s; infinity for `unlimited`."""
    return parse_rate(str(value))


def _duration(value: Any) -> float:
    """Seconds, from text such as 20ms."""
    try:
        return parse_duration_s(str(value))
    except ValueError as allowed:
        raise ValueError(f"must be {allowed}") from None


def _start(value: Any) -> float:
    """Seconds; infinity for `never`."""
    return inf if value == "never" else _duration(value)


def _per_token(value: Any) -> Any:
    """Time by rows; a single time holds for every number of rows, 0 means no time."""
    if isinstance(value, dict):
        return value
    return {1: value} if _duration(value) else {}


Size = Annotated[int, BeforeValidator(_size)]
Rate = Annotated[float, BeforeValidator(_rate)]
Duration = Annotated[float, BeforeValidator(_duration)]
Start = Annotated[float, BeforeValidator(_start)]
Times = dict[Annotated[int, Field(ge=1)], Annotated[Duration, Field(gt=0)]]
PerToken = Annotated[Times, BeforeValidator(_per_token)]
MAX_COUNT: Final = 100_000
"""Maximum number of pods, and of models."""
Cores = Annotated[float, Field(ge=0, le=1000)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT, strict=True)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PodsSection(Section):
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
    def _has_a_gpu(self) -> PodsSection:
        if self.share is not None and self.gpu is None:
            raise ValueError("share needs gpu, the GPU that it is a share of")
        if self.batch is not None and self.model is None:
            raise ValueError("batch needs model, the model that the pod serves")
        return self

    @model_validator(mode="after")
    def _ends_after_it_starts(self) -> PodsSection:
        for name, end_s in (("kill", self.kill), ("drain", self.drain)):
            if end_s is not None and end_s <= self.start:
                raise ValueError(f"{name} must be later than start ({self.start:g} s)")
        return self


class NodesSection(Section):
    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?$")]
    count: Count = 1
    object_storage_rate: Rate = 1e9
    disk_rate: Rate = 2e9
    disk: Size | Literal["unlimited"] = "unlimited"
    host_memory: Size = 0
    machine: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?$")] | None = None
    cores: Annotated[float, Field(gt=0, le=100_000)] | Literal["unlimited"] = "unlimited"
    all_cores_speed: Annotated[float, Field(gt=0, le=1)] = 1.0
    gpus: list[str] = []
    pods: Annotated[list[PodsSection], Field(min_length=1)]

    @model_validator(mode="after")
    def _has_its_pods_gpus(self) -> NodesSection:
        for name in sorted({each.gpu for each in self.pods if each.gpu is not None}):
            if name not in self.gpus:
                raise ValueError(f"gpus must name the pods' GPU {name!r}, were {self.gpus}")
        return self


class ModelsSection(Section):
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*(/[a-z0-9][a-z0-9.-]*)?$")]
    count: Count = 1
    size: Annotated[Size, Field(gt=0)] = 250 * 10**6
    memory: Annotated[Size, Field(gt=0)] | None = None
    annotations: dict[str, str | int | float | bool] = {}
    infer: Times = {1: 0.02}
    infer_cores: dict[Annotated[int, Field(ge=1)], Cores] = {}
    load_cpu: dict[Literal["host", "disk", "remote"], Duration] = {}
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
    prefill: Duration = 0.0
    prefix_cache: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _has_times(self) -> ModelsSection:
        if not self.infer:
            raise ValueError(
                "infer must give a time for at least one number of rows, such as {1: 20ms}"
            )
        if self.generation == "continuous" and not self.infer_per_token:
            raise ValueError(
                "generation: continuous needs infer_per_token, the time of an iteration, "
                "such as {1: 15ms, 8: 20ms}"
            )
        if self.prefill and (self.generation, self.input) != ("continuous", "tokens"):
            raise ValueError("prefill needs generation: continuous and input: tokens")
        if self.generation == "continuous" and not self.batching:
            raise ValueError("generation: continuous batches requests: batching must be true")
        return self


class NetworkSection(Section):
    gateway_hop: Duration = 0.0002
    pod_hop: Duration = 0.002


class ClusterSection(Section):
    nodes: Annotated[list[NodesSection], Field(min_length=1)]
    models: Annotated[list[ModelsSection], Field(min_length=1)]
    network: NetworkSection = NetworkSection()
    eviction: Literal["lru", "greedy-dual"] = "greedy-dual"
    heartbeat: Annotated[Duration, Field(gt=0)] = 1.0
    interference: Literal["none", "overlap"] = "none"
    applications: list[ApplicationSection] = []
    jitter: Annotated[float, Field(ge=0, le=2)] = 0.0
