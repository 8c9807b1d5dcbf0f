"""Reads and sets the scale of a pool's Deployment: its own, or the one that KServe creates.

Never competes with another scaler: where one exists, `scale` leaves the pool unchanged and its
result names that scaler.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from kubernetes.aio import client

from controller.api import MERGE_PATCH, Gone, PoolNotFound, path_of, read_json, request
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
from controller.resources import BOUNDS, DELETION_COST, POOL, Kind, PodObject, read_pod
from registry.domain.pod_state import PodState

logger = logging.getLogger(__name__)


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
        self._api = api
        self._namespace = namespace

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
        scale = await read_json(self._api, _scale_path(service))
        version = scale["metadata"]["resourceVersion"]
        return replace(observed, pods=int(scale["spec"].get("replicas", 0)), version=version)

    async def set_pods(self, observed: ObservedPool, pods: int) -> None:
        """Set the Deployment's scale. Raises Changed if it changed after it was observed."""
        service = observed.service
        patch = {"metadata": {"resourceVersion": observed.version}, "spec": {"replicas": pods}}
        path, subject = _scale_path(service), f"the scale of {service.name}"
        await request(self._api, "PATCH", path, subject, patch, content_type=MERGE_PATCH)
        logger.info("pool scaled", extra={"pool": observed.pool, "from": observed.pods, "to": pods})

    async def set_deletion_costs(self, observed: ObservedPool, costs: Mapping[str, int]) -> None:
        """Annotate the pods: the ReplicaSet controller deletes those of the lowest cost first."""
        for pod in await self.list_pods(observed):
            cost = costs.get(pod.name, 0)
            if pod.is_ending or pod.deletion_cost == cost:
                continue
            patch = {"metadata": {"annotations": {DELETION_COST: str(cost)}}}
            path, subject = path_of(Kind.POD, pod.namespace, pod.name), f"the pod {pod.name}"
            with suppress(Gone):
                await request(self._api, "PATCH", path, subject, patch, content_type=MERGE_PATCH)

    async def list_pods(self, observed: ObservedPool) -> list[PodObject]:
        """The pool's pods, including those marked for deletion."""
        listed = await self._labelled(Kind.POD, observed.pool, observed.service.namespace)
        return list(map(read_pod, listed))

    async def _find(self, pool: str) -> PoolObject:
        namespace = self._namespace
        found = [read_pool(each) for each in await self._labelled(Kind.SERVICE, pool, namespace)]
        if not found:  # without KServe; it owns the Deployments that it makes
            listed = await self._labelled(Kind.DEPLOYMENT, pool, namespace)
            own = [each for each in listed if not each["metadata"].get("ownerReferences")]
            try:
                found = list(map(read_deployment_pool, own))
            except ValueError as error:
                names = ", ".join(BOUNDS.values())
                raise PoolNotFound(f"{names} of pool {pool} must be numbers: {error}") from error
        if len(found) != 1:
            names = ", ".join(sorted(each.name for each in found)) or "none"
            where = f" in namespace {namespace}" if namespace else ""
            raise PoolNotFound(
                f"exactly one InferenceService, or Deployment without owner,{where} must have the "
                f"label {POOL}={pool}; found: {names}"
            )
        return found[0]

    async def _labelled(self, kind: Kind, pool: str, namespace: str) -> list[Any]:
        return await self._items(path_of(kind, namespace), labelSelector=f"{POOL}={pool}")

    async def _competing_scalers(self, namespace: str) -> list[CompetingScaler]:
        """Of the two kinds, of which KEDA's may be missing."""
        return read_scalers(
            await self._items(
                f"/apis/autoscaling/v2/namespaces/{namespace}/horizontalpodautoscalers"
            ),
            await self._items(f"/apis/keda.sh/v1alpha1/namespaces/{namespace}/scaledobjects"),
        )

    async def _items(self, path: str, **query: str) -> list[Any]:
        """Empty where the kind is not installed."""
        with suppress(Gone):
            return list((await read_json(self._api, path, **query))["items"])
        return []


def _scale_path(service: PoolObject) -> str:
    return path_of(Kind.DEPLOYMENT, service.namespace, service.deployment) + "/scale"
