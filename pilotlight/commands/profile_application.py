"""The confusion matrix of each variant of an application, through the gateway and real pods."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson

from gateway.selection.accuracy import profiled_accuracy
from gateway.selection.sneakpeek_training import confusion_matrix, stratified_subset
from load.labelled_examples import InvalidExamples, read_examples
from pilotlight.errors import InvalidInput, RequestFailed
from registry.domain.application import AccuracyProfile

if TYPE_CHECKING:
    from pathlib import Path

    from load.labelled_examples import LabelledExamples
    from pilotlight.commands.target import PlatformTarget
    from pilotlight.output import Output
    from registry.domain.application import ApplicationSpec
    from registry.domain.model import ModelSpec

_PARALLEL: Final = 4
"""Requests in flight. Each has one row, as an application's requests mostly have: the latencies
that pods measure meanwhile are what plans use."""
_OK: Final = 200


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
            output.note(f"profiling {variant.name} with {len(examples.labels)} examples")
            predicted = await _predictions(target, spec, variant, examples)
            confusion = confusion_matrix(examples.labels, predicted, len(spec.classes))
            profile = AccuracyProfile(
                variant.key, spec.classes, tuple(map(tuple, confusion.tolist()))
            )
            if not await registry.put_accuracy(profile):
                raise RequestFailed(f"{variant.name} was changed or deleted meanwhile")
            rows.append((str(variant.name), profiled_accuracy(confusion), confusion))
    output.table(
        ("VARIANT", "ACCURACY", "RECALLS"),
        [
            (name, f"{accuracy:.3f}", ", ".join(f"{each:.2f}" for each in _recalls(confusion)))
            for name, accuracy, confusion in rows
        ],
    )
    if output.as_json:
        output.result([
            {"model": name, "accuracy": accuracy, "confusion": confusion.tolist()}
            for name, accuracy, confusion in rows
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
