"""Local copy of the cluster's InferenceServices and of the pods of pools. No I/O."""

from collections.abc import Collection, Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from controller.resources import ApplicationObject, GraphObject, PodObject, Role, ServiceObject
from registry.domain.model import ModelName, ModelSpec

_Object = TypeVar("_Object", ApplicationObject, GraphObject)


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """An added, changed or removed object."""

    object: ServiceObject | PodObject | ApplicationObject | GraphObject
    is_removed: bool


class ObjectsByName(dict[ModelName, _Object]):
    """Objects of one kind, reconciled all together once one of them has changed."""

    def __init__(self) -> None:
        self.has_changed = False
        """Cleared by `pass_over`."""

    @contextmanager
    def pass_over(self) -> Iterator[None]:
        """A reconciliation of all objects: changes from here on, or a failure, need another."""
        self.has_changed = False
        try:
            yield
        except BaseException:
            self.has_changed = True
            raise

    def update_one(self, found: _Object, *, is_removed: bool) -> None:
        self.has_changed = True
        if not is_removed:
            self[found.name] = found
        elif (known := self.get(found.name)) and known.uid == found.uid:
            del self[found.name]

    def replace_all(self, listed: Iterable[_Object], known: Set[str]) -> None:
        """Apply a full list; for `known` see `ClusterObjects.replace`."""
        before = {each.uid: each.name for each in self.values()}
        for uid in before.keys() & known:
            del self[before[uid]]
        left = known - before.keys()
        self.update((each.name, each) for each in listed if each.uid not in left)
        self.has_changed = True


class ClusterObjects:
    """The newest known version of each object, and the models and pods that changed."""

    def __init__(self, pool_namespaces: Collection[str] | None = None) -> None:
        """`pool_namespaces`: where pools count, since any tenant may set the label; None: all."""
        self._pool_namespaces = pool_namespaces
        self.services: dict[ModelName, ServiceObject] = {}
        """Models and pools; the many that KServe alone serves are left out."""
        self._pools: set[ModelName] = set()
        """Names in `services` that are, or were, pools."""
        self.pods: dict[str, PodObject] = {}
        """By uid."""
        self.applications: ObjectsByName[ApplicationObject] = ObjectsByName()
        self.graphs: ObjectsByName[GraphObject] = ObjectsByName()
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
            case ApplicationObject() as application:
                self.applications.update_one(application, is_removed=event.is_removed)
            case GraphObject() as graph:
                self.graphs.update_one(graph, is_removed=event.is_removed)

    def _update_service(self, service: ServiceObject, *, is_removed: bool) -> None:
        before = self.services.get(service.name)
        if is_removed:
            if before is not None and before.uid == service.uid:
                self.remove(service)
            return
        if before is not None and _version(before) > _version(service):
            return
        if not service.concerns_us:
            if before is not None:
                self.remove(before)
            return
        self.services[service.name] = service
        if service.role is Role.POOL:
            self._pools.add(service.name)
        if before is None or before.resource_version != service.resource_version:
            self.changed.add(service.name)
        if self.is_pool(service):
            self._mark_models_changed(service.pool)

    def _update_pod(self, pod: PodObject, *, is_removed: bool) -> None:
        if is_removed:
            if self.pods.pop(pod.uid, None) is not None:
                self.removed_pods.append(pod)
        else:
            self.pods[pod.uid] = pod

    def remove(self, service: ServiceObject) -> None:
        self.services.pop(service.name, None)
        self._pools.discard(service.name)
        self.changed.add(service.name)
        if self.is_pool(service):
            self._mark_models_changed(service.pool)

    def uids(self) -> set[str]:
        """Those of all objects."""
        kinds = (self.services, self.pods, self.applications, self.graphs)
        return {each.uid for kind in kinds for each in kind.values()}

    def replace(
        self, services: Iterable[ServiceObject], pods: Iterable[PodObject], known: Set[str]
    ) -> None:
        """Apply a full list: objects that are not in it are removed.

        `known`: the uids before it was asked for; objects that came since are not in it, and some
        of those that have left since are.
        """
        left = known - self.uids()
        listed = [each for each in services if each.uid not in left]
        for service in listed:
            self._update_service(service, is_removed=False)
        names = {service.name for service in listed}
        for service in [each for each in self.services.values() if each.name not in names]:
            if service.uid in known:
                self.remove(service)
        existing = {pod.uid: pod for pod in pods if pod.uid not in left}
        for uid in (self.pods.keys() - existing.keys()) & known:
            self.removed_pods.append(self.pods.pop(uid))
        self.pods.update(existing)
        self.is_complete = True

    def is_pool(self, service: ServiceObject) -> bool:
        """Whether the object describes a pool, in a namespace whose pools count."""
        return service.role is Role.POOL and (
            self._pool_namespaces is None or service.name.namespace in self._pool_namespaces
        )

    def pool(self, pool: str) -> ServiceObject | None:
        """The InferenceService of a pool; of several the oldest."""
        found = [
            each
            for name in self._pools
            if self.is_pool(each := self.services[name])
            and each.pool == pool
            and not each.is_deleted
        ]
        return min(found, key=lambda each: (each.created, each.name), default=None)

    def has_pool(self, pool: str) -> bool:
        return self.pool(pool) is not None

    def pools(self) -> set[str]:
        pools = (self.services[name] for name in self._pools)
        return {each.pool for each in pools if self.is_pool(each)}

    def earlier_models(self, service: ServiceObject) -> Iterator[ModelSpec]:
        """The models that its namespace declared before it in the same pool."""
        return (
            each.spec
            for each in self.services.values()
            if each.spec is not None
            and not each.is_deleted
            and each.pool == service.pool
            and each.name.namespace == service.name.namespace
            and (each.created, each.name) < (service.created, service.name)
        )

    def _mark_models_changed(self, pool: str) -> None:
        self.graphs.has_changed = True
        self.changed |= {
            each.name
            for each in self.services.values()
            if each.role is Role.MODEL and each.pool == pool
        }


def _version(service: ServiceObject) -> int:
    return int(service.resource_version) if service.resource_version.isdigit() else 0
