"""The cluster's objects as last seen: InferenceServices and the pods of pools. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoscaler.kubernetes.models.inference_services import Role, ServiceObject
from autoscaler.kubernetes.pools.pods import PodObject

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autoscaler.kubernetes.cluster.informer import ObjectEvent
    from registry.domain.model import ModelName


class ClusterObjects:
    """What there is, newest version wins, and which models have news."""

    def __init__(self) -> None:
        self.services: dict[ModelName, ServiceObject] = {}
        self.pods: dict[tuple[str, str], PodObject] = {}
        self.changed: set[ModelName] = set()
        """InferenceServices with news that nobody acted on yet."""
        self.removed_pods: list[PodObject] = []
        """Pods that are gone, which nobody acted on yet."""
        self.is_complete = False
        """Whether everything was listed once."""

    def see(self, seen: ObjectEvent) -> None:
        """Take in an object as it is now, or that it is gone."""
        match seen.what:
            case ServiceObject() as service:
                self._see_service(service, is_gone=seen.is_gone)
            case PodObject() as pod:
                self._see_pod(pod, is_gone=seen.is_gone)

    def _see_service(self, service: ServiceObject, *, is_gone: bool) -> None:
        before = self.services.get(service.name)
        if is_gone:
            if before is not None and before.uid == service.uid:
                self.forget(service)
            return
        if before is not None and _version(before) > _version(service):
            return
        self.services[service.name] = service
        if before is None or before.resource_version != service.resource_version:
            self.changed.add(service.name)
        if service.role is Role.POOL:
            self._touch_models_of(service.pool)

    def _see_pod(self, pod: PodObject, *, is_gone: bool) -> None:
        place = (pod.namespace, pod.name)
        if is_gone:
            if self.pods.pop(place, None) is not None:
                self.removed_pods.append(pod)
        else:
            self.pods[place] = pod

    def forget(self, service: ServiceObject) -> None:
        """An InferenceService does not exist any more."""
        self.services.pop(service.name, None)
        self.changed.add(service.name)
        if service.role is Role.POOL:
            self._touch_models_of(service.pool)

    def replace(self, services: Iterable[ServiceObject], pods: Iterable[PodObject]) -> None:
        """Take in a full list; what is not in it is gone."""
        listed = list(services)
        for service in listed:
            self._see_service(service, is_gone=False)
        names = {service.name for service in listed}
        for name in self.services.keys() - names:
            self.forget(self.services[name])
        standing = {(pod.namespace, pod.name): pod for pod in pods}
        for place in self.pods.keys() - standing.keys():
            self.removed_pods.append(self.pods.pop(place))
        self.pods.update(standing)
        self.is_complete = True

    def has_pool(self, pool: str) -> bool:
        """Whether an InferenceService of the cluster is this pool."""
        return any(
            each.role is Role.POOL and each.pool == pool and not each.is_deleted
            for each in self.services.values()
        )

    def pools(self) -> set[str]:
        """Names of all pools."""
        return {each.pool for each in self.services.values() if each.role is Role.POOL}

    def _touch_models_of(self, pool: str) -> None:
        self.changed |= {
            each.name
            for each in self.services.values()
            if each.role is Role.MODEL and each.pool == pool
        }


def _version(service: ServiceObject) -> int:
    return int(service.resource_version) if service.resource_version.isdigit() else 0
