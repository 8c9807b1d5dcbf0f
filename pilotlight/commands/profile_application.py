"""Profiles of an application's variants: accuracy, times, costs; measured on pods, or from JSON."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from load.generator.bodies import example_body
from pilotlight.commands.pod_profile import measure_profile, pods_by_product
from pilotlight.commands.target import PlatformTarget
from pilotlight.errors import InvalidInput, RequestFailed
from pilotlight.output import Output
from registry.domain.application import AccuracyProfile, ApplicationSpec
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelSpec
from variants.application import named_variants, no_variants
from variants.labelled_examples import InvalidExamples, LabelledExamples, read_examples
from variants.look_files import confusion_matrix, stratified_subset
from variants.planning.window import profiled_accuracy, recalls

_PARALLEL: Final = 4
"""Requests in flight. Each has one row, as an application's requests mostly have: the latencies
that pods measure meanwhile are what plans use."""
_OK: Final = 200


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
        found = []
        for variant in variants:
            output.note(f"profiling {variant.name} with {len(examples.labels)} examples")
            predicted = await _predictions(target, spec, variant.name, examples)
            confusion = confusion_matrix(examples.labels, predicted, len(spec.classes))
            matrix = tuple(map(tuple, confusion.tolist()))
            profile = AccuracyProfile(variant.key, spec.classes, matrix)
            if not await registry.put_accuracy(profile):
                raise RequestFailed(f"{variant.name} was changed or deleted meanwhile")
            pods = pods_by_product(await registry.cluster(), variant.key)
            batches = [await measure_profile(target, pod, variant.name, plan) for pod in pods]
            found.append(_Profiled(variant, confusion, batches))
    _print(output, found)


def examples_for(spec: ApplicationSpec, path: Path) -> LabelledExamples:
    """Labelled examples of the application's classes. Raises InvalidInput."""
    try:
        return read_examples(
            path, classes=len(spec.classes), inputs=[each.name for each in spec.inputs]
        )
    except InvalidExamples as error:
        raise InvalidInput(error.problems) from error


def _print(output: Output, found: Sequence[_Profiled]) -> None:
    output.result(
        [
            {
                "model": str(each.variant.name),
                "accuracy": profiled_accuracy(each.confusion),
                "confusion": each.confusion.tolist(),
                "batches": each.batches,
            }
            for each in found
        ]
    )
    output.table(
        ("VARIANT", "ACCURACY", "LATENCY", "RECALLS"),
        [
            (
                str(each.variant.name),
                f"{profiled_accuracy(each.confusion):.3f}",
                ", ".join(map(_latency, each.batches)) or "-",
                ", ".join(f"{recall:.2f}" for recall in recalls(each.confusion)),
            )
            for each in found
        ],
    )


def _latency(batches: Mapping[str, Any]) -> str:
    """Of a single request, by the profile on one kind of accelerator."""
    return f"{batches['points'][0]['latency_s'] * 1000:.2f} ms on {batches['device']}"


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
            "confusion": state.accuracies[each.name].confusion,
        }
        for each, problem in named_variants(spec, state)
        if problem is None
    }
    return {
        "kind": KIND,
        "application": str(spec.name),
        "classes": list(spec.classes),
        "variants": variants,
    }
