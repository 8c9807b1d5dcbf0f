"""Reads and sets the number of a pool's pods: the scale subresource of the Deployment KServe made.

Nobody is fought: where something else scales the Deployment, it is left alone, and the answer says
what does.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kubernetes.aio import client

from autoscaler.kubernetes.cluster.cluster_api import GROUP, PLURAL, TIMEOUT_S, VERSION, answers
from autoscaler.kubernetes.errors import Gone, PoolNotFound
from autoscaler.kubernetes.models.inference_services import POOL
from autoscaler.kubernetes.pools.pods import DELETION_COST, read_pod
from autoscaler.kubernetes.pools.pool_size import (
    CompetingScaler,
    PoolObject,
    ScaledElsewhere,
    ScaleTo,
    deletion_costs,
    find_owner,
    read_pool,
    within_bounds,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoscaler.kubernetes.pools.pods import PodObject
    from registry.domain.pod_state import PodState

logger = logging.getLogger(__name__)

_MERGE_PATCH = "application/merge-patch+json"
_SCALED_OBJECTS = ("keda.sh", "v1alpha1", "scaledobjects")


@dataclass(frozen=True, slots=True)
class ObservedPool:
    """A pool as the cluster has it."""

    pool: str
    found: PoolObject
    owner: ScaledElsewhere | None
    """Whose its number of pods is; None: ours."""
    pods: int = 0
    """Pods its Deployment is to have; unknown where the number is not ours."""
    version: str = ""
    """Of the Deployment."""


class PoolScaler:
    """Scales pools in a cluster, or in one namespace of it."""

    def __init__(self, api: client.ApiClient, *, namespace: str = "") -> None:
        self._namespace = namespace
        self._objects = client.CustomObjectsApi(api)
        self._apps = client.AppsV1Api(api)
        self._core = client.CoreV1Api(api)
        self._autoscaling = client.AutoscalingV2Api(api)
        self._plain = api.sanitize_for_serialization

    async def scale(
        self, pool: str, wanted: int, pods: Mapping[str, PodState]
    ) -> ScaleTo | ScaledElsewhere:
        """Set a pool's number of pods; `pods` are those of the registry, by name.

        Raises PoolNotFound, KubernetesError.
        """
        seen = await self.look(pool)
        if seen.owner is not None:
            logger.warning("pool left alone", extra={"pool": pool, "reason": seen.owner.reason})
            return seen.owner
        decision = within_bounds(seen.found, wanted)
        if decision.pods < seen.pods:
            await self.rank(seen, deletion_costs(pods))
        if decision.pods != seen.pods:
            await self.set_pods(seen, decision.pods)
        return decision

    async def look(self, pool: str) -> ObservedPool:
        """What the cluster has of a pool. Raises PoolNotFound, KubernetesError."""
        found = await self._find(pool)
        if owner := find_owner(found, await self._rivals(found.namespace)):
            return ObservedPool(pool, found, owner)
        with answers("read the scale", found):
            scale = await self._apps.read_namespaced_deployment_scale(
                found.deployment, found.namespace, _request_timeout=TIMEOUT_S
            )
        version = scale.metadata.resource_version
        return ObservedPool(pool, found, None, int(scale.spec.replicas or 0), version)

    async def set_pods(self, seen: ObservedPool, pods: int) -> None:
        """Set the number, unless the Deployment is another one than was seen. Raises Changed."""
        found = seen.found
        patch = {"metadata": {"resourceVersion": seen.version}, "spec": {"replicas": pods}}
        with answers("set the scale", found):
            await self._apps.patch_namespaced_deployment_scale(
                found.deployment, found.namespace, patch,
                _content_type=_MERGE_PATCH, _request_timeout=TIMEOUT_S,
            )  # fmt: skip
        logger.info("pool scaled", extra={"pool": seen.pool, "from": seen.pods, "to": pods})

    async def rank(self, seen: ObservedPool, costs: Mapping[str, int]) -> None:
        """Tell the ReplicaSet controller which pods to end first: those that cost least."""
        for pod in await self.list_pods(seen):
            cost = costs.get(pod.name, 0)
            if pod.is_ending or pod.deletion_cost == cost:
                continue
            patch = {"metadata": {"annotations": {DELETION_COST: str(cost)}}}
            try:
                with answers("set the deletion cost", pod):
                    await self._core.patch_namespaced_pod(
                        pod.name, pod.namespace, patch,
                        _content_type=_MERGE_PATCH, _request_timeout=TIMEOUT_S,
                    )  # fmt: skip
            except Gone:
                continue

    async def list_pods(self, seen: ObservedPool) -> list[PodObject]:
        """The pool's pods, those on their way out among them."""
        with answers("list", "pods"):
            listed = await self._core.list_namespaced_pod(
                seen.found.namespace, label_selector=f"{POOL}={seen.pool}",
                _request_timeout=TIMEOUT_S,
            )  # fmt: skip
        return [read_pod(self._plain(each)) for each in listed.items]

    async def _find(self, pool: str) -> PoolObject:
        more: dict[str, Any] = {
            "label_selector": f"{POOL}={pool}", "_request_timeout": TIMEOUT_S
        }  # fmt: skip
        with answers("list", "InferenceServices"):
            found: Any = await (
                self._objects.list_namespaced_custom_object(
                    GROUP, VERSION, self._namespace, PLURAL, **more
                )
                if self._namespace
                else self._objects.list_cluster_custom_object(GROUP, VERSION, PLURAL, **more)
            )
        items = found["items"]
        if len(items) != 1:
            names = ", ".join(sorted(each["metadata"]["name"] for each in items)) or "none"
            where = f" in namespace {self._namespace}" if self._namespace else ""
            raise PoolNotFound(
                f"exactly one InferenceService{where} must have the label {POOL}={pool}; "
                f"found: {names}"
            )
        return read_pool(items[0])

    async def _rivals(self, namespace: str) -> list[CompetingScaler]:
        with answers("list", "HorizontalPodAutoscalers"):
            autoscalers = await self._autoscaling.list_namespaced_horizontal_pod_autoscaler(
                namespace, _request_timeout=TIMEOUT_S
            )
        rivals = [
            CompetingScaler(
                "HorizontalPodAutoscaler", each.metadata.name, each.spec.scale_target_ref.name
            )
            for each in autoscalers.items
            if each.spec.scale_target_ref.kind == "Deployment"
        ]
        try:
            with answers("list", "ScaledObjects"):
                scaled: Any = await self._objects.list_namespaced_custom_object(
                    *_SCALED_OBJECTS[:2], namespace, _SCALED_OBJECTS[2], _request_timeout=TIMEOUT_S
                )
        except Gone:
            return rivals  # KEDA is not installed
        return rivals + [
            CompetingScaler(
                "ScaledObject", each["metadata"]["name"], each["spec"]["scaleTargetRef"]["name"]
            )
            for each in scaled["items"]
            if each["spec"]["scaleTargetRef"].get("kind", "Deployment") == "Deployment"
        ]
