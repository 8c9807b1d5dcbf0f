"""Local copy of the cluster's objects that concern the controller. No I/O."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from controller.resources import (
    ApplicationObject,
    ClusterObject,
    GraphObject,
    Kind,
    PodObject,
    Role,
    ServiceObject,
)
from registry.domain.model import ModelName, ModelSpec


@dataclass(frozen=True, slots=True)
class Key:
    """What is reconciled as one."""

    kind: Kind
    name: ModelName | None = None
    """Of an InferenceService; None: all objects of the kind, and what is left of removed ones."""


class ClusterObjects:
    """The newest known version of each object; reports what has to be reconciled."""

    def __init__(self, pool_namespaces: Collection[str] | None = None) -> None:
        """`pool_namespaces`: where pools count, since any tenant may set the label; None: all."""
        self._pool_namespaces = pool_namespaces
        self.services: dict[ModelName, ServiceObject] = {}
        """Models and pools; the many that KServe alone serves are left out."""
        self._pools: set[ModelName] = set()
        """Names in `services` that are, or were, pools."""
        self.pods: dict[ModelName, PodObject] = {}
        self.applications: dict[ModelName, ApplicationObject] = {}
        self.graphs: dict[ModelName, GraphObject] = {}
        self._stored: Mapping[Kind, dict[ModelName, Any]] = {
            Kind.SERVICE: self.services,
            Kind.POD: self.pods,
            Kind.APPLICATION: self.applications,
            Kind.GRAPH: self.graphs,
        }
        self.removed_pods: list[PodObject] = []
        """Removed pods that are perhaps still registered; `PodPhases` clears it."""
        self._changed_quotas: set[tuple[str, str]] = set()
        """By namespace and pool: of models that count otherwise against them."""
        self.on_change: Callable[[Key], None] = lambda _: None

    def replace(self, kind: Kind, listed: Iterable[ClusterObject], namespace: str = "") -> None:
        """Apply a full list of a kind, in one namespace or (empty) in all."""
        found = {_name(each): each for each in listed}
        for name, before in list(self._stored[kind].items()):
            if name not in found and namespace in ("", name.namespace):
                self._remove(before)
        for each in found.values():
            self._put(each)
        self.on_change(Key(kind))

    def update(self, found: ClusterObject, *, is_removed: bool = False) -> None:
        """Apply one change."""
        if not is_removed:
            self._put(found)
            return
        before = self._stored[found.kind].get(_name(found))
        if before is not None and before.uid == found.uid:
            self._remove(before)

    def update_by_reply(self, found: ServiceObject) -> None:
        """Apply the reply to our own write, which may come before or after the watch's events."""
        before = self.services.get(found.name)
        if before is not None and before.uid == found.uid:
            self._put(found)

    def all_keys(self) -> Iterator[Key]:
        """Everything that there is to reconcile."""
        yield from (Key(Kind.SERVICE, name) for name in self.services)
        yield from map(Key, Kind)

    @staticmethod
    def concerns_us(found: ClusterObject) -> bool:
        """False for InferenceServices that KServe alone serves."""
        return not isinstance(found, ServiceObject) or found.concerns_us

    def _put(self, found: ClusterObject) -> None:
        name, stored = _name(found), self._stored[found.kind]
        before = stored.get(name)
        if not self.concerns_us(found):
            if before is not None:
                self._remove(before)
            return
        if before is not None and before.uid != found.uid:
            self._remove(before)
        elif isinstance(found, ServiceObject) and before and before.version > found.version:
            return
        stored[name] = found
        if not isinstance(found, ServiceObject):
            self.on_change(Key(found.kind))
            return
        if found.role is Role.POOL:
            self._pools.add(name)
        if before is None or before.resource_version != found.resource_version:
            self._note_quotas(before, found)
            self.on_change(Key(Kind.SERVICE, name))
            if self.is_pool(found):
                self._report_models_of(found.pool)

    def _remove(self, found: ClusterObject) -> None:
        name = _name(found)
        self._stored[found.kind].pop(name, None)
        if isinstance(found, PodObject):
            self.removed_pods.append(found)
        if not isinstance(found, ServiceObject):
            self.on_change(Key(found.kind))
            return
        self._pools.discard(name)
        self._note_quotas(found, None)
        self.on_change(Key(Kind.SERVICE, name))
        if self.is_pool(found):
            self._report_models_of(found.pool)

    def _report_models_of(self, pool: str) -> None:
        for kind in (Kind.POD, Kind.GRAPH, Kind.APPLICATION):
            self.on_change(Key(kind))
        for each in self.services.values():
            if each.role is Role.MODEL and each.pool == pool:
                self.on_change(Key(Kind.SERVICE, each.name))

    def _note_quotas(self, before: ServiceObject | None, after: ServiceObject | None) -> None:
        known = [each for each in (before, after) if each is not None]
        shares = {each.quota_share for each in known}
        if len(shares) > 1 or len(known) == 1:
            self._changed_quotas |= {
                (known[0].name.namespace, share[0]) for share in shares if share is not None
            }

    def take_changed_quotas(self) -> list[ModelName]:
        """The models whose quotas other models use otherwise since the last call."""
        changed, self._changed_quotas = self._changed_quotas, set()
        return [
            name
            for name, each in self.services.items()
            if changed
            and each.quota_share is not None
            and (name.namespace, each.quota_share[0]) in changed
        ]

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

    def has_any(self, kind: Kind) -> bool:
        return bool(self._stored[kind])

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


def _name(found: ClusterObject) -> ModelName:
    return ModelName(found.namespace, found.name) if isinstance(found, PodObject) else found.name
