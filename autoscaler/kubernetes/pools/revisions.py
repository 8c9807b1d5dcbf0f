"""Which pods of a pool in Knative mode belong to a Revision that another has replaced. Pure.

Knative takes an old Revision to no pods once no requests come. Requests to our pods do not follow
Knative's routes: while the gateway sends them there, the old pods would stay for good.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from registry.domain.model import ModelName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autoscaler.kubernetes.pools.pods import PodObject


def replaced_pods(
    pods: Iterable[PodObject], status_of: Mapping[ModelName, Mapping[str, Any]]
) -> set[PodObject]:
    """Pods that are older than all Revisions to which Knative routes their service.

    `status_of` has the status of each pool's InferenceService. Newer pods are no matter: their
    Revision is not routed to before it is ready. Nor is an older one that is routed to again.
    """
    of_knative = sorted((pod for pod in pods if pod.revision), key=_service)
    found: set[PodObject] = set()
    for service, group in groupby(of_knative, _service):
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
