"""Profiles of an application's variants: accuracy, times, costs; measured on pods, or from JSON."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from load.generator.bodies import example_body
from pilotlight.commands.declaration_check import VariantMetadata, read_metadata
from pilotlight.commands.pod_profile import (
    POINT_COLUMNS,
    measure_profile,
    pods_by_product,
    point_rows,
)
from pilotlight.commands.sneakpeek import examples_for
from pilotlight.commands.target import PlatformTarget
from pilotlight.errors import InvalidInput, RequestFailed
from pilotlight.output import Output, format_bytes
from registry.domain.application import (
    AccuracyProfile,
    ApplicationSpec,
    parse_confusion,
    read_tensors,
)
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelSpec, Tier
from variants.application import metadata_problems, named_variants, no_variants
from variants.labelled_examples import LabelledExamples
from variants.looks.training import confusion_matrix, stratified_subset
from variants.planning.utility import profiled_accuracy, recalls

_PARALLEL: Final = 4
"""Requests in flight. Each has one row, as an application's requests mostly have: the latencies
that pods measure meanwhile are what plans use."""
_OK: Final = 200
_METADATA_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Profiled:
    variant: ModelSpec
    confusion: np.ndarray
    batches: list[dict[str, Any]]
    """Profiles by batch size as JSON, one per accelerator product."""


async def profile_application(
    target: PlatformTarget,
    output: Output,
    spec: ApplicationSpec,
    path: Path,
    limit: int | None,
    plan: Mapping[str, int],
) -> None:
    """Send the examples, or `limit` of them, to every variant; store what each gets right.

    Pods then measure each variant by batch size, by `plan` as `profile MODEL` does.
    """
    examples = examples_for(spec, path)
    if limit is not None:
        examples = examples.take(stratified_subset(examples.labels, limit))
    async with target.registry() as registry:
        state = await registry.cluster()
        variants = [variant for variant, _ in named_variants(spec, state)]
        if not variants:
            raise InvalidInput([no_variants(spec)])
        metadata = await _checked_metadata(target, state, spec, variants)
        found = []
        for variant, tensors in zip(variants, metadata, strict=True):
            output.note(f"profiling {variant.name} with {len(examples.labels)} examples")
            predicted = await _predictions(target, spec, variant.name, examples)
            confusion = confusion_matrix(examples.labels, predicted, len(spec.classes))
            profile = AccuracyProfile(
                variant.key,
                spec.classes,
                tuple(map(tuple, confusion.tolist())),
                tensors.inputs,
                tensors.outputs,
            )
            if not await registry.put_accuracy(profile):
                raise RequestFailed(f"{variant.name} was changed or deleted meanwhile")
            pods = pods_by_product(await registry.cluster(), variant.key)
            batches = [await measure_profile(target, pod, variant.name, plan) for pod in pods]
            found.append(_Profiled(variant, confusion, batches))
        _print(output, found, await registry.cluster())


async def _checked_metadata(
    target: PlatformTarget,
    state: ClusterState,
    spec: ApplicationSpec,
    variants: Sequence[ModelSpec],
) -> list[VariantMetadata]:
    """V2 metadata of the variants; raises InvalidInput with all that contradicts the application.

    Raises RequestFailed where no pod tells.
    """
    found = [await read_metadata(target, state, each, _METADATA_TIMEOUT_S) for each in variants]
    problems = [
        f"{variant.name} is no variant of {spec.name}: {problem}"
        for variant, each in zip(variants, found, strict=True)
        for problem in metadata_problems(spec, each.inputs, each.outputs)
    ]
    if problems:
        raise InvalidInput(problems)
    return found


def _print(output: Output, found: Sequence[_Profiled], state: ClusterState) -> None:
    costs = [_costs(state, each.variant) for each in found]
    output.table(
        ("VARIANT", "ACCURACY", "LATENCY", "LOAD", "MEMORY", "RECALLS"),
        [
            (
                str(each.variant.name),
                f"{profiled_accuracy(each.confusion):.3f}",
                _shown(cost["latency_s"], lambda value: f"{value * 1000:.2f} ms"),
                _shown(cost["load_s"], lambda value: f"{value * 1000:.0f} ms"),
                _shown(cost["memory_bytes"], lambda value: format_bytes(int(value))),
                ", ".join(f"{recall:.2f}" for recall in recalls(each.confusion)),
            )
            for each, cost in zip(found, costs, strict=True)
        ],
    )
    output.line()
    output.table(
        ("VARIANT", "ACCELERATOR", *POINT_COLUMNS),
        [
            (str(each.variant.name), batches["device"], *row)
            for each in found
            for batches in each.batches
            for row in point_rows(batches)
        ],
    )
    if output.as_json:
        output.result(
            [
                {
                    "model": str(each.variant.name),
                    "accuracy": profiled_accuracy(each.confusion),
                    **cost,
                    "confusion": each.confusion.tolist(),
                    "batches": each.batches,
                }
                for each, cost in zip(found, costs, strict=True)
            ]
        )


def _shown(value: float | None, text: Callable[[float], str]) -> str:
    return "-" if value is None else text(value)


def _costs(state: ClusterState, spec: ModelSpec) -> dict[str, float | None]:
    """An inference with its preparation, over all kinds of accelerators; a load; device memory.

    The load is from the fastest tier that it was loaded from. None: not measured yet.
    """
    measured = state.measured(spec.key)
    loads = [measured.get(f"load:{tier}") for tier in (Tier.HOST, Tier.DISK, Tier.REMOTE)]
    stages = measured.stages
    return {
        "latency_s": stages.hold_s if stages.is_measured else None,
        "load_s": next((each.seconds for each in loads if each is not None), None),
        "memory_bytes": state.residency.device_bytes.get(spec.key),
    }


async def _predictions(
    target: PlatformTarget, spec: ApplicationSpec, name: ModelName, examples: LabelledExamples
) -> np.ndarray:
    path = f"/serving/{name.namespace}/{name.name}/v2/models/{name.name}/infer"
    labels = np.zeros(len(examples.labels), np.int64)
    rows = iter(range(len(labels)))

    async def send_rows() -> None:
        for row in rows:
            response = await target.request_gateway(
                "POST",
                path,
                content=example_body(examples, row),
                headers={"content-type": "application/json"},
            )
            if response.status_code != _OK:
                raise RequestFailed(
                    f"{name} returned {response.status_code}: {response.text[:500]}"
                )
            labels[row] = _label(spec, name, response.json())

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(_PARALLEL):
                group.create_task(send_rows())
    except* RequestFailed as failed:
        raise failed.exceptions[0] from None
    return labels


def _label(spec: ApplicationSpec, name: ModelName, document: dict[str, Any]) -> int:
    outputs = {str(each.get("name")): each for each in document.get("outputs", [])}
    if spec.output not in outputs:
        raise RequestFailed(
            f"{name} has no output {spec.output!r}, which application {spec.name} names; its "
            f"outputs: {', '.join(outputs)}"
        )
    [label] = map(int, outputs[spec.output]["data"])
    if not 0 <= label < len(spec.classes):
        raise RequestFailed(
            f"{name}: output {spec.output} must be 0 to {len(spec.classes) - 1}, the "
            f"application's classes, was {label}"
        )
    return label


KIND: Final = "pilotlight accuracy profiles"


def accuracy_document(spec: ApplicationSpec, state: ClusterState) -> dict[str, Any]:
    """The stored profiles of the application's variants."""
    variants = {
        each.name.name: {
            "generation": each.generation,
            "confusion": profile.confusion,
            "inputs": [asdict(tensor) for tensor in profile.inputs],
            "outputs": list(profile.outputs),
        }
        for each, _ in named_variants(spec, state)
        if (profile := state.accuracies.get(each.name)) is not None and profile.key == each.key
    }
    return {
        "kind": KIND,
        "application": str(spec.name),
        "classes": list(spec.classes),
        "variants": variants,
    }


def parse_accuracies(
    text: str, spec: ApplicationSpec, state: ClusterState, *, file: str
) -> list[AccuracyProfile]:
    """Raises InvalidInput with all mistakes."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InvalidInput([f"--import: {file} is not JSON: {error}"]) from error
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise InvalidInput([f"--import: {file} is not what `profile APPLICATION --export` writes"])
    if document.get("classes") != list(spec.classes):
        shown = document.get("classes")
        raise InvalidInput(
            [f"--import: {file}: classes must be {list(spec.classes)}, were {shown!r}"]
        )
    problems: list[str] = []
    found = []
    variants = document.get("variants")
    for name, each in (variants if isinstance(variants, dict) else {}).items():
        problem, profile = _parse(name, each, spec, state)
        if profile is not None:
            found.append(profile)
        else:
            problems.append(f"--import: {file}: {name}: {problem}")
    if not found and not problems:
        problems.append(f"--import: {file} has no variants")
    if problems:
        raise InvalidInput(problems)
    return found


def _parse(
    name: str, document: Any, spec: ApplicationSpec, state: ClusterState
) -> tuple[str, AccuracyProfile | None]:
    models = {each.name.name: each for each, _ in named_variants(spec, state)}
    model = models.get(name)
    if model is None:
        return f"is no variant of {spec.name}; it has {', '.join(sorted(models)) or 'none'}", None
    generation = document.get("generation") if isinstance(document, dict) else None
    if generation != model.generation:
        return (
            f"the profile is of generation {generation!r}, the model's is {model.generation!r}; "
            f"run `pilotlight profile {spec.name} --examples FILE`",
            None,
        )
    try:
        confusion = parse_confusion(document.get("confusion"), len(spec.classes))
    except ValueError as error:
        return f"confusion must be {error}", None
    try:
        inputs = read_tensors(document.get("inputs", ()))
        outputs = tuple(map(str, document.get("outputs", ())))
    except (TypeError, KeyError):
        return "inputs must list objects with name, datatype and shape, and outputs names", None
    return "", AccuracyProfile(model.key, spec.classes, confusion, inputs, outputs)
