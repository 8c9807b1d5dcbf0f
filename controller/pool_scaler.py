"""Reads and sets the scale of a pool's Deployment: its own, or the one that KServe creates.

Never competes with another scaler: where one exists, `scale` leaves the pool unchanged and its
result names that scaler.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kubernetes.aio import client

from controller.api import TIMEOUT_S, Gone, PoolNotFound, api_errors
from controller.pool_size import (
    CompetingScaler,
    Owner,
    PoolObject,
    ScaledElsewhere,
    ScaleTo,
    bounds_of,
    deletion_costs,
    find_owner,
    read_deployment_pool,
    read_pool,
    read_scalers,
    within_bounds,
)
from controller.resources import BOUNDS, DELETION_COST, POOL, RESOURCES, Kind, PodObject, read_pod
from registry.domain.pod_state import PodState

logger = logging.getLogger(__name__)

_MERGE_PATCH = "application/merge-patch+json"
_SCALED_OBJECTS = ("keda.sh", "v1alpha1", "scaledobjects")


@dataclass(frozen=True, slots=True)
class ObservedPool:
    """A pool's object and the scale of its Deployment."""

    pool: str
    service: PoolObject
    owner: ScaledElsewhere | None
    """Another scaler of the pool; None: there is none. `service` has its bounds."""
    pods: int = 0
    """Replicas in the Deployment's spec."""
    version: str = ""
    """Resource version of the Deployment."""

    @property
    def has_scale(self) -> bool:
        """False in Knative's mode, where each Revision has a Deployment."""
        return self.owner is None or self.owner.owner is not Owner.MODE


class PoolScaler:
    """Scales pools of a cluster, or of one namespace."""

    def __init__(self, api: client.ApiClient, *, namespace: str = "") -> None:
        self._namespace = namespace
        self._objects = client.CustomObjectsApi(api)
        self._apps = client.AppsV1Api(api)
        self._core = client.CoreV1Api(api)
        self._autoscaling = client.AutoscalingV2Api(api)
        self._to_dict = api.sanitize_for_serialization

    async def scale(
        self, pool: str, wanted: int, pods: Mapping[str, PodState]
    ) -> ScaleTo | ScaledElsewhere:
        """Set a pool's number of pods; `pods` are those of the registry, by name.

        Raises PoolNotFound, KubernetesError.
        """
        observed = await self.observe(pool)
        if observed.owner is not None:
            extra = {"pool": pool, "reason": observed.owner.reason}
            logger.warning("the pool was not scaled", extra=extra)
            return observed.owner
        decision = within_bounds(observed.service, wanted)
        if decision.pods < observed.pods:
            await self.set_deletion_costs(observed, deletion_costs(pods))
        if decision.pods != observed.pods:
            await self.set_pods(observed, decision.pods)
        return decision

    async def observe(self, pool: str) -> ObservedPool:
        """Read a pool's object and scale. Raises PoolNotFound, KubernetesError."""
        service = await self._find(pool)
        scalers = await self._competing_scalers(service.namespace)
        observed = ObservedPool(pool, bounds_of(service, scalers), find_owner(service, scalers))
        if not observed.has_scale:
            return observed
        with api_errors("read the scale of", service):
            scale = await self._apps.read_namespaced_deployment_scale(
                service.deployment, service.namespace, _request_timeout=TIMEOUT_S
            )
        version = scale.metadata.resource_version
        return replace(observed, pods=int(scale.spec.replicas or 0), version=version)

    async def set_pods(self, observed: ObservedPool, pods: int) -> None:
        """Set the Deployment's scale. Raises Changed if it changed after it was observed."""
        service = observed.service
        patch = {"metadata": {"resourceVersion": observed.version}, "spec": {"replicas": pods}}
        with api_errors("set the scale of", service):
            await self._apps.patch_namespaced_deployment_scale(
                service.deployment,
                service.namespace,
                patch,
                _content_type=_MERGE_PATCH,
                _request_timeout=TIMEOUT_S,
            )
        logger.info("pool scaled", extra={"pool": observed.pool, "from": observed.pods, "to": pods})

    async def set_deletion_costs(self, observed: ObservedPool, costs: Mapping[str, int]) -> None:
        """Annotate the pods: the ReplicaSet controller deletes those of the lowest cost first."""
        for pod in await self.list_pods(observed):
            cost = costs.get(pod.name, 0)
            if pod.is_ending or pod.deletion_cost == cost:
                continue
            patch = {"metadata": {"annotations": {DELETION_COST: str(cost)}}}
            try:
                with api_errors("set the deletion cost of", pod):
                    await self._core.patch_namespaced_pod(
                        pod.name,
                        pod.namespace,
                        patch,
                        _content_type=_MERGE_PATCH,
                        _request_timeout=TIMEOUT_S,
                    )
            except Gone:
                continue

    async def list_pods(self, observed: ObservedPool) -> list[PodObject]:
        """The pool's pods, including those marked for deletion."""
        with api_errors("list", "pods"):
            listed = await self._core.list_namespaced_pod(
                observed.service.namespace,
                label_selector=f"{POOL}={observed.pool}",
                _request_timeout=TIMEOUT_S,
            )
        return [read_pod(self._to_dict(each)) for each in listed.items]

    async def _find(self, pool: str) -> PoolObject:
        found = [read_pool(each) for each in await self._labelled(Kind.SERVICE, pool)]
        if not found:  # without KServe; it owns the Deployments that it makes
            listed = await self._labelled(Kind.DEPLOYMENT, pool)
            own = [each for each in listed if not each["metadata"].get("ownerReferences")]
            try:
                found = list(map(read_deployment_pool, own))
            except ValueError as error:
                names = ", ".join(BOUNDS.values())
                raise PoolNotFound(f"{names} of pool {pool} must be numbers: {error}") from error
        if len(found) != 1:
            names = ", ".join(sorted(each.name for each in found)) or "none"
            where = f" in namespace {self._namespace}" if self._namespace else ""
            raise PoolNotFound(
                f"exactly one InferenceService, or Deployment without owner,{where} must have the "
                f"label {POOL}={pool}; found: {names}"
            )
        return found[0]

    async def _labelled(self, kind: Kind, pool: str) -> list[Any]:
        group, version, plural = RESOURCES[kind]
        options: dict[str, Any] = {
            "label_selector": f"{POOL}={pool}",
            "_request_timeout": TIMEOUT_S,
        }
        try:
            with api_errors("list", kind):
                found: Any = await (
                    self._objects.list_namespaced_custom_object(
                        group, version, self._namespace, plural, **options
                    )
                    if self._namespace
                    else self._objects.list_cluster_custom_object(group, version, plural, **options)
                )
        except Gone:  # the kind is not installed
            return []
        return list(found["items"])

    async def _competing_scalers(self, namespace: str) -> list[CompetingScaler]:
        with api_errors("list", "HorizontalPodAutoscalers"):
            listed = await self._autoscaling.list_namespaced_horizontal_pod_autoscaler(
                namespace, _request_timeout=TIMEOUT_S
            )
        autoscalers = [self._to_dict(each) for each in listed.items]
        try:
            with api_errors("list", "ScaledObjects"):
                scaled: Any = await self._objects.list_namespaced_custom_object(
                    *_SCALED_OBJECTS[:2], namespace, _SCALED_OBJECTS[2], _request_timeout=TIMEOUT_S
                )
        except Gone:
            scaled = {"items": ()}  # KEDA is not installed
        return read_scalers(autoscalers, scaled["items"])
