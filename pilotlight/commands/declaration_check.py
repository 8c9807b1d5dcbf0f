"""What pods say of models that were just declared: whether they can read them.

A pod reads a model's small files and the headers of its weights. Schemes whose libraries fetch
whole models are left out: that would be a download. What ails the pod that is asked, such as its
full disk, says nothing of the model: only errors of reading it count, and none where another pod
reads it. What cannot be read is kept as the model's state, until a load succeeds or it is declared
anew. `apply` and `up` warn of it, and `apply` of variants of an application that cannot be chosen.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import httpx

from pilotlight.commands.target import PlatformTarget
from pilotlight.errors import RequestFailed
from registry.domain.cluster import ClusterState
from registry.domain.model import PERMANENT_STATUSES, UNREADABLE, LoadFailure, ModelName, ModelSpec
from registry.domain.pod_state import PodState
from registry.inference_service.predictors import needs_in_pool
from registry.redis.client import Registry
from variants.application import named_variants

_SCHEMES: Final = frozenset({"s3", "file", "pvc"})
_STATUSES: Final = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, *PERMANENT_STATUSES})
_TIMEOUT_S: Final = 60.0
"""Longer than a pod that has just started imports vLLM, which says what it knows."""
_PARALLEL: Final = 8
_MAX_PODS: Final = 2
"""Asked per model: one alone may lack the network or a mount."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check of declared models found, by model; of the others all that was read is right."""

    unreadable: Mapping[ModelName, str] = field(default_factory=dict)
    unchecked: Mapping[ModelName, str] = field(default_factory=dict)
    """Why a model was not looked at."""


NOT_CHECKED: Final = Checked()


async def check_declared(
    target: PlatformTarget, registry: Registry, state: ClusterState, specs: Sequence[ModelSpec]
) -> Checked:
    """Ask pods of `state` for the models, and keep what they cannot read as the models' state.

    Without a pod nothing is known of the models that one would be asked for.
    """
    pods = [pod for pod in state.pods.values() if pod.is_accepting]
    served = [each for each in specs if not needs_in_pool(each, has_server=state.has_server)]
    asked = [each for each in served if _scheme(each) in _SCHEMES]
    unchecked = {
        each.name: f"{_scheme(each)}:// is read at the first load"
        for each in served
        if _scheme(each) not in _SCHEMES
    }
    if not pods or not asked:
        return Checked({}, unchecked)
    limit = asyncio.Semaphore(_PARALLEL)

    async def check(index: int, spec: ModelSpec) -> LoadFailure | None:
        async with limit:
            first = index % len(pods)
            try:
                return await _problem(target, [*pods[first:], *pods[:first]][:_MAX_PODS], spec)
            except TimeoutError:
                unchecked[spec.name] = f"a pod reads its files for more than {_TIMEOUT_S:g} s"
                return None

    problems = await asyncio.gather(*(check(*each) for each in enumerate(asked)))
    found = {spec.name: each for spec, each in zip(asked, problems, strict=True) if each}
    for each in found.values():
        await registry.report_unreadable(each)
    return Checked({name: each.message for name, each in found.items()}, unchecked)


def _scheme(spec: ModelSpec) -> str:
    return urlsplit(spec.storage_uri).scheme


async def _problem(
    target: PlatformTarget, pods: Sequence[PodState], spec: ModelSpec
) -> LoadFailure | None:
    """Why no pod can read the model; None where one can, or all are at fault themselves.

    Raises TimeoutError while a pod reads it: another one would read the same files.
    """
    problem = None
    for pod in pods:
        found = await _problem_at(target, pod, spec)
        if found is True:
            return None
        problem = found or problem
    return problem


async def _problem_at(target: PlatformTarget, pod: PodState, spec: ModelSpec) -> LoadFailure | bool:
    """Why the pod cannot read the model; True where it can, False where the pod is at fault."""
    path = f"/v2/repository/models/{spec.name.path_segment}/versions/{spec.generation}/check"
    try:
        response = await target.request_pod(pod, "POST", path, timeout_s=_TIMEOUT_S)
    except RequestFailed as error:
        if isinstance(error.__cause__, httpx.ReadTimeout):
            raise TimeoutError from error
        return False
    if response.is_success:
        return True
    is_own = response.headers.get("x-pilotlight-not-executed") == "load-failed"
    if response.status_code not in _STATUSES or not is_own:
        return False
    try:
        message = str(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        message = f"HTTP {response.status_code} from {pod.name}"
    return LoadFailure(spec.key, UNREADABLE, message, 0, 0.0, response.status_code)


def variant_problems(state: ClusterState, names: Collection[ModelName]) -> list[str]:
    """A line per variant of these applications that cannot be chosen."""
    return [
        f"{name}: {variant.name.name} cannot be chosen: {problem}"
        for name in sorted(names)
        if (application := state.applications.get(name)) is not None
        for variant, problem in named_variants(application, state)
        if problem is not None
    ]
