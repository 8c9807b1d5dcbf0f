"""Accuracy, times and costs of each variant of an application, through gateway and real pods."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from gateway.selection.utility import profiled_accuracy, recalls
from load.errors import InvalidExamples
from load.labelled_examples import LabelledExamples, read_examples
from pilotlight.commands.declaration_check import VariantMetadata, read_metadata
from pilotlight.commands.pod_profile import (
    POINT_COLUMNS,
    measure_profile,
    pods_by_product,
    point_rows,
)
from pilotlight.commands.target import PlatformTarget
from pilotlight.errors import InvalidInput, RequestFailed
from pilotlight.output import Output
from pilotlight.quantities import format_bytes
from pilotlight.sneakpeek_training import confusion_matrix, stratified_subset
from registry.domain.application import AccuracyProfile, ApplicationSpec
from registry.domain.application_variants import metadata_problems, named_variants
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelSpec, Tier

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
    target: PlatformTarget, output: Output, spec: ApplicationSpec, path: Path, limit: int | None,
    plan: Mapping[str, int],
) -> None:  # fmt: skip
    """Send the examples, or `limit` of them, to every variant; store what each gets right.

    Pods then measure each variant by batch size, by `plan` as `profile MODEL` does.
    """
    examples = _examples(spec, path, limit)
    async with target.registry() as registry:
        state = await registry.cluster()
        variants = _variants(spec, state)
        metadata = await _checked_metadata(target, state, spec, variants)
        found = []
        for variant, tensors in zip(variants, metadata, strict=True):
            output.note(f"profiling {variant.name} with {len(examples.labels)} examples")
            predicted = await _predictions(target, spec, variant, examples)
            confusion = confusion_matrix(examples.labels, predicted, len(spec.classes))
            profile = AccuracyProfile(
                variant.key, spec.classes, tuple(map(tuple, confusion.tolist())),
                tensors.inputs, tensors.outputs,
            )  # fmt: skip
            if not await registry.put_accuracy(profile):
                raise RequestFailed(f"{variant.name} was changed or deleted meanwhile")
            pods = pods_by_product(await registry.cluster(), variant.key)
            batches = [await measure_profile(target, pod, variant.name, plan) for pod in pods]
            found.append(_Profiled(variant, confusion, batches))
        costs = variant_costs(await registry.cluster(), variants)
    _print(output, found, costs)


def _examples(spec: ApplicationSpec, path: Path, limit: int | None) -> LabelledExamples:
    try:
        examples = read_examples(
            path, classes=len(spec.classes), inputs=[each.name for each in spec.inputs]
        )
    except InvalidExamples as error:
        raise InvalidInput(error.problems) from error
    if limit is None:
        return examples
    return examples.take(stratified_subset(examples.labels, limit))


def _variants(spec: ApplicationSpec, state: ClusterState) -> list[ModelSpec]:
    """Raises InvalidInput if there is none."""
    variants = [variant for variant, _ in named_variants(spec, state)]
    if not variants:
        raise InvalidInput([
            f"application {spec.name} has no variants: annotate models of its namespace with "
            f"pilotlight.io/application: {spec.name.name}"
        ])  # fmt: skip
    return variants


async def _checked_metadata(
    target: PlatformTarget, state: ClusterState, spec: ApplicationSpec,
    variants: Sequence[ModelSpec],
) -> list[VariantMetadata]:  # fmt: skip
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


def _print(output: Output, found: Sequence[_Profiled], costs: "Mapping[str, VariantCosts]") -> None:
    output.table(
        ("VARIANT", "ACCURACY", "LATENCY", "LOAD", "MEMORY", "RECALLS"),
        [
            (
                str(each.variant.name), f"{profiled_accuracy(each.confusion):.3f}",
                *costs[each.variant.key].texts(),
                ", ".join(f"{recall:.2f}" for recall in recalls(each.confusion)),
            )
            for each in found
        ],
    )  # fmt: skip
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
        output.result([
            {
                "model": str(each.variant.name), "accuracy": profiled_accuracy(each.confusion),
                **asdict(costs[each.variant.key]), "confusion": each.confusion.tolist(),
                "batches": each.batches,
            }
            for each in found
        ])  # fmt: skip


async def _predictions(
    target: PlatformTarget, spec: ApplicationSpec, variant: ModelSpec, examples: LabelledExamples
) -> np.ndarray:
    name = variant.name
    path = f"/serving/{name.namespace}/{name.name}/v2/models/{name.name}/infer"
    labels = np.zeros(len(examples.labels), np.int64)
    rows = iter(range(len(labels)))

    async def send_rows() -> None:
        for row in rows:
            response = await target.request_gateway(
                "POST", path, content=orjson.dumps(_body(examples, row)),
                headers={"content-type": "application/json"},
            )  # fmt: skip
            if response.status_code != _OK:
                raise RequestFailed(
                    f"{name} returned {response.status_code}: {response.text[:500]}"
                )
            [labels[row]] = _labels(spec, variant, response.json())

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(_PARALLEL):
                group.create_task(send_rows())
    except* RequestFailed as failed:
        raise failed.exceptions[0] from None
    return labels


def _body(examples: LabelledExamples, row: int) -> dict[str, Any]:
    """A V2 request for one example."""
    return {
        "inputs": [
            {
                "name": tensor,
                "datatype": "FP32",
                "shape": [1, *values.shape[1:]],
                "data": values[row].ravel().tolist(),
            }
            for tensor, values in examples.inputs.items()
        ]
    }


def _labels(spec: ApplicationSpec, variant: ModelSpec, document: dict[str, Any]) -> list[int]:
    for output in document.get("outputs", []):
        if output.get("name") == spec.output:
            found = [int(each) for each in output["data"]]
            if all(0 <= each < len(spec.classes) for each in found):
                return found
            raise RequestFailed(
                f"{variant.name}: output {spec.output} must be 0 to {len(spec.classes) - 1}, the "
                f"application's classes, was {max(found)}"
            )
    named = ", ".join(str(each.get("name")) for each in document.get("outputs", []))
    raise RequestFailed(
        f"{variant.name} has no output {spec.output!r}, which application {spec.name} names; its "
        f"outputs: {named}"
    )


@dataclass(frozen=True, slots=True)
class VariantCosts:
    """None: not measured yet."""

    latency_s: float | None
    """Of an inference with its preparation, over all kinds of accelerators."""
    load_s: float | None
    """From the fastest tier that it was loaded from."""
    memory_bytes: int | None
    """On the device."""

    def texts(self) -> tuple[str, str, str]:
        return (
            "-" if self.latency_s is None else f"{self.latency_s * 1000:.2f} ms",
            "-" if self.load_s is None else f"{self.load_s * 1000:.0f} ms",
            "-" if self.memory_bytes is None else format_bytes(self.memory_bytes),
        )


def variant_costs(state: ClusterState, variants: Sequence[ModelSpec]) -> dict[str, VariantCosts]:
    """By model key."""
    return {spec.key: _costs(state, spec) for spec in variants}


def _costs(state: ClusterState, spec: ModelSpec) -> VariantCosts:
    measured = state.measured(spec.key)
    stages = measured.stages
    loads = [measured.get(f"load:{tier}") for tier in (Tier.HOST, Tier.DISK, Tier.REMOTE)]
    load = next((each for each in loads if each is not None), None)
    return VariantCosts(
        stages.hold_s if stages.is_measured else None,
        None if load is None else load.seconds,
        state.residency.device_bytes.get(spec.key),
    )
