"""The confusion matrix of each variant of an application, through the gateway and real pods."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson

from gateway.selection.accuracy import profiled_accuracy
from gateway.selection.sneakpeek_training import confusion_matrix, stratified_subset
from load.labelled_examples import InvalidExamples, read_examples
from pilotlight.commands.variant_costs import variant_costs
from pilotlight.errors import InvalidInput, RequestFailed
from registry.domain.application import AccuracyProfile
from registry.domain.application_variants import metadata_problems

if TYPE_CHECKING:
    from pathlib import Path

    from load.labelled_examples import LabelledExamples
    from pilotlight.commands.target import PlatformTarget
    from pilotlight.output import Output
    from registry.domain.application import ApplicationSpec
    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelSpec

_PARALLEL: Final = 4
"""Requests in flight. Each has one row, as an application's requests mostly have: the latencies
that pods measure meanwhile are what plans use."""
_OK: Final = 200
_METADATA_TIMEOUT_S: Final = 60.0


async def profile_application(
    target: PlatformTarget, output: Output, spec: ApplicationSpec, path: Path,
    limit: int | None = None,
) -> None:  # fmt: skip
    """Send the examples, or `limit` of them, to every variant; store what each gets right."""
    try:
        examples = read_examples(
            path, classes=len(spec.classes), inputs=[each.name for each in spec.inputs]
        )
    except InvalidExamples as error:
        raise InvalidInput(error.problems) from error
    if limit is not None:
        examples = examples.take(stratified_subset(examples.labels, limit))
    rows = []
    async with target.registry() as registry:
        state = await registry.cluster()
        variants = [
            record.spec
            for name, record in sorted(state.models.items())
            if name.namespace == spec.name.namespace
            and record.spec.policy.application == spec.name.name
        ]
        if not variants:
            raise InvalidInput([
                f"application {spec.name} has no variants: annotate models of its namespace with "
                f"pilotlight.io/application: {spec.name.name}"
            ])  # fmt: skip
        for variant in variants:
            await _check_metadata(target, state, spec, variant)
            output.note(f"profiling {variant.name} with {len(examples.labels)} examples")
            predicted = await _predictions(target, spec, variant, examples)
            confusion = confusion_matrix(examples.labels, predicted, len(spec.classes))
            profile = AccuracyProfile(
                variant.key, spec.classes, tuple(map(tuple, confusion.tolist()))
            )
            if not await registry.put_accuracy(profile):
                raise RequestFailed(f"{variant.name} was changed or deleted meanwhile")
            rows.append((variant, profiled_accuracy(confusion), confusion))
        costs = variant_costs(await registry.cluster(), [variant for variant, _, _ in rows])
    output.table(
        ("VARIANT", "ACCURACY", "LATENCY", "LOAD", "MEMORY", "RECALLS"),
        [
            (
                str(variant.name), f"{accuracy:.3f}", *costs[variant.key].texts(),
                ", ".join(f"{each:.2f}" for each in _recalls(confusion)),
            )
            for variant, accuracy, confusion in rows
        ],
    )  # fmt: skip
    if output.as_json:
        output.result([
            {
                "model": str(variant.name), "accuracy": accuracy, **asdict(costs[variant.key]),
                "confusion": confusion.tolist(),
            }
            for variant, accuracy, confusion in rows
        ])  # fmt: skip


async def _check_metadata(
    target: PlatformTarget, state: ClusterState, spec: ApplicationSpec, variant: ModelSpec
) -> None:
    """Compare a variant's V2 metadata, which a pod reads, with the application's tensors.

    Raises InvalidInput with all contradictions, RequestFailed if no pod tells.
    """
    accepting = [each for each in state.pods.values() if each.is_accepting]
    pod = min(accepting, key=lambda each: each.name, default=None)
    if pod is None:
        raise RequestFailed("no pod accepts requests; start pods with `pilotlight up`")
    path = f"/v2/models/{variant.name.path_segment}"
    response = await target.request_pod(pod, "GET", path, timeout_s=_METADATA_TIMEOUT_S)
    if response.status_code != _OK:
        raise RequestFailed(
            f"pod {pod.name}: metadata of {variant.name}: {response.status_code} "
            f"{response.text[:500]}"
        )
    document = response.json()
    problems = metadata_problems(spec, document["inputs"], document["outputs"])
    if problems:
        raise InvalidInput([
            f"{variant.name} is no variant of {spec.name}: it {each}" for each in problems
        ])  # fmt: skip


def _recalls(confusion: np.ndarray) -> list[float]:
    shares: list[float] = (np.diagonal(confusion) / confusion.sum(axis=1)).tolist()
    return shares


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
