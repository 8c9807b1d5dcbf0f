"""Pods of a pool in Knative mode whose Revision has been replaced. Pure.

Knative scales an old Revision to zero once it receives no requests. The gateway does not follow
Knative's routes: unless it stops sending requests to old pods, they stay forever.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from registry.domain.model import ModelName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autoscaler.kubernetes.cluster.pods import PodObject


def replaced_pods(
    pods: Iterable[PodObject], status_of: Mapping[ModelName, Mapping[str, Any]]
) -> set[PodObject]:
    """Pods older than every Revision to which Knative routes traffic of their service.

    `status_of`: status of each pool's InferenceService. Pods of newer Revisions are kept: Knative
    routes to them once they are ready. So are those of an older Revision after a rollback.
    """
    in_knative_mode = sorted((pod for pod in pods if pod.revision), key=_service)
    found: set[PodObject] = set()
    for service, group in groupby(in_knative_mode, _service):
        members = list(group)
        routed = _routed(status_of.get(service, {}))
        oldest = min((pod.generation for pod in members if pod.revision in routed), default=0)
        found |= {pod for pod in members if pod.generation < oldest}
    return found


def _service(pod: PodObject) -> ModelName:
    return ModelName(pod.namespace, pod.service)


def _routed(status: Mapping[str, Any]) -> set[str]:
    predictor = (status.get("components") or {}).get("predictor") or {}
    return {
        target.get("revisionName", "")
        for target in predictor.get("traffic") or ()
        if target.get("percent")
    }
