"""V2 metadata of an application's variants, and why variants cannot be chosen."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pilotlight.errors import RequestFailed
from registry.domain.application_codec import read_tensors
from registry.domain.application_variants import metadata_problems, named_variants

if TYPE_CHECKING:
    from collections.abc import Collection

    from pilotlight.commands.target import PlatformTarget
    from registry.domain.application import ApplicationSpec, InputTensor
    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelName, ModelSpec

_OK: Final = 200
_APPLY_TIMEOUT_S: Final = 10.0
"""`apply` waits no longer for metadata; `profile` and `get applications` compare them as well."""


@dataclass(frozen=True, slots=True)
class VariantMetadata:
    inputs: tuple[InputTensor, ...]
    outputs: tuple[str, ...]


async def read_metadata(
    target: PlatformTarget, state: ClusterState, variant: ModelSpec, timeout_s: float
) -> VariantMetadata:
    """As a pod reads it from the model's small files. Raises RequestFailed if no pod tells."""
    accepting = [each for each in state.pods.values() if each.is_accepting]
    pod = min(accepting, key=lambda each: each.name, default=None)
    if pod is None:
        raise RequestFailed("no pod accepts requests; start pods with `pilotlight up`")
    path = f"/v2/models/{variant.name.path_segment}"
    response = await target.request_pod(pod, "GET", path, timeout_s=timeout_s)
    if response.status_code != _OK:
        raise RequestFailed(
            f"pod {pod.name}: metadata of {variant.name}: {response.status_code} "
            f"{response.text[:500]}"
        )
    document = response.json()
    outputs = tuple(each["name"] for each in document["outputs"])
    return VariantMetadata(read_tensors(document["inputs"]), outputs)


async def variant_problems(
    target: PlatformTarget, state: ClusterState, names: Collection[ModelName]
) -> list[str]:
    """A line per variant of these applications that cannot be chosen.

    Metadata of variants without a profile of their own is read from a pod, where one answers.
    """
    found = [
        (application, variant, problem)
        for name in sorted(names)
        if (application := state.applications.get(name)) is not None
        for variant, problem in named_variants(application, state)
    ]
    read = await asyncio.gather(*(
        _contradictions(target, state, application, variant) for application, variant, _ in found
    ))  # fmt: skip
    return [
        f"{application.name}: {variant.name.name} cannot be chosen: {'; '.join(problems)}"
        for (application, variant, problem), contradictions in zip(found, read, strict=True)
        if (problems := [*([problem] if problem else []), *contradictions])
    ]


async def _contradictions(
    target: PlatformTarget, state: ClusterState, application: ApplicationSpec, variant: ModelSpec
) -> list[str]:
    own = state.accuracies.get(variant.name)
    if own is not None and own.key == variant.key:
        return []  # `named_variants` compares what was stored with the profile
    try:
        metadata = await read_metadata(target, state, variant, _APPLY_TIMEOUT_S)
    except RequestFailed:
        return []
    return metadata_problems(application, metadata.inputs, metadata.outputs)
