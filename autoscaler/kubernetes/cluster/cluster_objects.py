"""Local copy of the cluster's InferenceServices and of the pods of pools. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autoscaler.kubernetes.cluster.inference_services import Role, ServiceObject
from autoscaler.kubernetes.cluster.pods import PodObject

if TYPE_CHECKING:
    from collections.abc import Iterable

    from registry.domain.model import ModelName


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """An added, changed or removed object."""

    object: ServiceObject | PodObject
    is_removed: bool


class ClusterObjects:
    """The newest known version of each object, and the models and pods that changed."""

    def __init__(self) -> None:
        self.services: dict[ModelName, ServiceObject] = {}
        self.pods: dict[str, PodObject] = {}
        """By uid."""
        self.changed: set[ModelName] = set()
        """InferenceServices to reconcile; the controller clears it."""
        self.removed_pods: list[PodObject] = []
        """Removed pods that are perhaps still registered; `PodPhases` clears it."""
        self.is_complete = False
        """True after the first full list."""

    def update(self, event: ObjectEvent) -> None:
        match event.object:
            case ServiceObject() as service:
                self._update_service(service, is_removed=event.is_removed)
            case PodObject() as pod:
                self._update_pod(pod, is_removed=event.is_removed)

    def _update_service(self, service: ServiceObject, *, is_removed: bool) -> None:
        before = self.services.get(service.name)
        if is_removed:
            if before is not None and before.uid == service.uid:
                self.remove(service)
            return
        if before is not None and _version(before) > _version(service):
            return
        self.services[service.name] = service
        if before is None or before.resource_version != service.resource_version:
            self.changed.add(service.name)
        if service.role is Role.POOL:
            self._mark_models_changed(service.pool)

    def _update_pod(self, pod: PodObject, *, is_removed: bool) -> None:
        if is_removed:
            if self.pods.pop(pod.uid, None) is not None:
                self.removed_pods.append(pod)
        else:
            self.pods[pod.uid] = pod

    def remove(self, service: ServiceObject) -> None:
        self.services.pop(service.name, None)
        self.changed.add(service.name)
        if service.role is Role.POOL:
            self._mark_models_changed(service.pool)

    def replace(self, services: Iterable[ServiceObject], pods: Iterable[PodObject]) -> None:
        """Apply a full list: objects that are not in it are removed."""
        listed = list(services)
        for service in listed:
            self._update_service(service, is_removed=False)
        names = {service.name for service in listed}
        for name in self.services.keys() - names:
            self.remove(self.services[name])
        existing = {pod.uid: pod for pod in pods}
        for uid in self.pods.keys() - existing.keys():
            self.removed_pods.append(self.pods.pop(uid))
        self.pods.update(existing)
        self.is_complete = True

    def has_pool(self, pool: str) -> bool:
        return any(
            each.role is Role.POOL and each.pool == pool and not each.is_deleted
            for each in self.services.values()
        )

    def pools(self) -> set[str]:
        return {each.pool for each in self.services.values() if each.role is Role.POOL}

    def _mark_models_changed(self, pool: str) -> None:
        self.changed |= {
            each.name
            for each in self.services.values()
            if each.role is Role.MODEL and each.pool == pool
        }


def _version(service: ServiceObject) -> int:
    return int(service.resource_version) if service.resource_version.isdigit() else 0
