"""Whether pods can read the models that were just declared: what `apply` warns of.

A pod reads a model's small files, as it does for its metadata. Schemes whose libraries fetch whole
models are left out: that would be a download. What ails the pod that is asked, such as its full
disk, says nothing of the model: only errors of reading it count, and none where another pod reads
it.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from pilotlight.errors import RequestFailed
from registry.inference_service.predictors import needs_in_pool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pilotlight.commands.target import PlatformTarget
    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelName, ModelSpec
    from registry.domain.pod_state import PodState

_SCHEMES: Final = ("s3://", "file://", "pvc://")
_TIMEOUT_S: Final = 15.0
_PARALLEL: Final = 8
_MAX_PODS: Final = 2
"""Asked per model: one alone may lack the network or a mount."""


async def unreadable_models(
    target: PlatformTarget, state: ClusterState, specs: Sequence[ModelSpec]
) -> dict[ModelName, str]:
    """Why a model cannot be read, by name; without a pod to ask, nothing."""
    pods = [pod for pod in state.pods.values() if pod.is_accepting]
    asked = [
        each
        for each in specs
        if each.storage_uri.startswith(_SCHEMES)
        and not needs_in_pool(each, has_server=state.has_server)
    ]
    if not pods or not asked:
        return {}
    limit = asyncio.Semaphore(_PARALLEL)

    async def check(index: int, spec: ModelSpec) -> str:
        async with limit:
            first = index % len(pods)
            problem = ""
            for pod in [*pods[first:], *pods[:first]][:_MAX_PODS]:
                found = await _problem(target, pod, spec)
                if found == "":
                    return ""
                problem = found or problem
            return problem

    problems = await asyncio.gather(*(check(*each) for each in enumerate(asked)))
    found = zip(asked, problems, strict=True)
    return {spec.name: problem for spec, problem in found if problem}


async def _problem(target: PlatformTarget, pod: PodState, spec: ModelSpec) -> str | None:
    """Why the pod cannot read the model, empty where it can; None where the pod is at fault."""
    path = f"/v2/models/{spec.name.path_segment}/versions/{spec.generation}"
    try:
        response = await target.request_pod(pod, "GET", path, timeout_s=_TIMEOUT_S)
    except RequestFailed:
        return None
    if response.is_success:
        return ""
    is_own = response.headers.get("x-pilotlight-not-executed") == "load-failed"
    if response.status_code != HTTPStatus.SERVICE_UNAVAILABLE or not is_own:
        return None
    try:
        return str(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status_code} from {pod.name}"
