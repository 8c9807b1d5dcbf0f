"""Sets the number of a pool's pods: the scale subresource of the Deployment KServe made.

Nobody is fought: where something else scales the Deployment, it is left alone, and the answer says
what does.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kubernetes.aio import client

from autoscaler.kubernetes.cluster_api import GROUP, PLURAL, TIMEOUT_S, VERSION, answers
from autoscaler.kubernetes.errors import Gone, PoolNotFound
from autoscaler.kubernetes.inference_services import POOL
from autoscaler.kubernetes.pods import DELETION_COST, read_pod
from autoscaler.kubernetes.pool_size import (
    LeaveAlone,
    PoolObject,
    Rival,
    ScaleTo,
    decide_size,
    deletion_costs,
    read_pool,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from registry.cluster import PodState

logger = logging.getLogger(__name__)

_MERGE_PATCH = "application/merge-patch+json"
_SCALED_OBJECTS = ("keda.sh", "v1alpha1", "scaledobjects")


class PoolScaler:
    """Scales pools in a cluster."""

    def __init__(self, api: client.ApiClient) -> None:
        self._objects = client.CustomObjectsApi(api)
        self._apps = client.AppsV1Api(api)
        self._core = client.CoreV1Api(api)
        self._autoscaling = client.AutoscalingV2Api(api)
        self._plain = api.sanitize_for_serialization

    async def scale(
        self, pool: str, wanted: int, pods: Mapping[str, PodState]
    ) -> ScaleTo | LeaveAlone:
        """Set a pool's number of pods; `pods` are those of the registry, by name.

        Raises PoolNotFound, KubernetesError.
        """
        found = await self._find(pool)
        decision = decide_size(found, wanted, await self._rivals(found.namespace))
        if isinstance(decision, LeaveAlone):
            logger.warning("pool left alone", extra={"pool": pool, "reason": decision.reason})
            return decision
        now = await self._pods_now(found)
        if decision.pods < now:
            await self._mark(found, pool, deletion_costs(pods))
        if decision.pods != now:
            await self._set(found, decision.pods)
            logger.info("pool scaled", extra={"pool": pool, "from": now, "to": decision.pods})
        return decision

    async def _find(self, pool: str) -> PoolObject:
        with answers("list", "InferenceServices"):
            found: Any = await self._objects.list_cluster_custom_object(
                GROUP, VERSION, PLURAL, label_selector=f"{POOL}={pool}",
                _request_timeout=TIMEOUT_S,
            )  # fmt: skip
        items = found["items"]
        if len(items) != 1:
            names = ", ".join(sorted(each["metadata"]["name"] for each in items)) or "none"
            raise PoolNotFound(
                f"exactly one InferenceService must have the label {POOL}={pool}; found: {names}"
            )
        return read_pool(items[0])

    async def _rivals(self, namespace: str) -> list[Rival]:
        with answers("list", "HorizontalPodAutoscalers"):
            autoscalers = await self._autoscaling.list_namespaced_horizontal_pod_autoscaler(
                namespace, _request_timeout=TIMEOUT_S
            )
        rivals = [
            Rival("HorizontalPodAutoscaler", each.metadata.name, each.spec.scale_target_ref.name)
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
            Rival("ScaledObject", each["metadata"]["name"], each["spec"]["scaleTargetRef"]["name"])
            for each in scaled["items"]
            if each["spec"]["scaleTargetRef"].get("kind", "Deployment") == "Deployment"
        ]

    async def _pods_now(self, pool: PoolObject) -> int:
        with answers("read the scale", pool):
            scale = await self._apps.read_namespaced_deployment_scale(
                pool.deployment, pool.namespace, _request_timeout=TIMEOUT_S
            )
        return int(scale.spec.replicas or 0)

    async def _set(self, pool: PoolObject, pods: int) -> None:
        with answers("set the scale", pool):
            await self._apps.patch_namespaced_deployment_scale(
                pool.deployment, pool.namespace, {"spec": {"replicas": pods}},
                _content_type=_MERGE_PATCH, _request_timeout=TIMEOUT_S,
            )  # fmt: skip

    async def _mark(self, pool: PoolObject, label: str, costs: Mapping[str, int]) -> None:
        """Tell the ReplicaSet controller which pods to end first."""
        with answers("list", "pods"):
            listed = await self._core.list_namespaced_pod(
                pool.namespace, label_selector=f"{POOL}={label}", _request_timeout=TIMEOUT_S
            )
        for each in listed.items:
            pod = read_pod(self._plain(each))
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
