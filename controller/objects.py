"""Local copy of the cluster's objects that concern the controller. No I/O."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from controller.resources import (
    ApplicationObject,
    ClusterObject,
    GraphObject,
    Kind,
    PodObject,
    Role,
    ServiceObject,
    TenantObject,
)
from registry.domain.model import ModelName, ModelSpec
from registry.domain.tenant_rules import TenantRules, merged


@dataclass(frozen=True, slots=True)
class Key:
    """What is reconciled as one."""

    kind: Kind
    name: ModelName | None = None
    """None: all objects of the kind, and what is left of removed ones."""


class ClusterObjects:
    """The newest known version of each object; reports what has to be reconciled."""

    def __init__(self, pool_namespaces: Collection[str] | None = None) -> None:
        """`pool_namespaces`: where pools count, since any tenant may set the label; None: all."""
        self._pool_namespaces = pool_namespaces
        self.services: dict[ModelName, ServiceObject] = {}
        """Models and pools; the many that KServe alone serves are left out."""
        self.models: dict[ModelName, ServiceObject] = {}
        """Declared by a Model."""
        self._deployments: dict[ModelName, ServiceObject] = {}
        """Pools on a cluster without KServe."""
        self._pools: set[Key] = set()
        """Of objects that are, or were, pools."""
        self.pods: dict[ModelName, PodObject] = {}
        self.applications: dict[ModelName, ApplicationObject] = {}
        self.graphs: dict[ModelName, GraphObject] = {}
        self.tenants: dict[ModelName, TenantObject] = {}
        self._stored: Mapping[Kind, dict[ModelName, Any]] = {
            Kind.SERVICE: self.services,
            Kind.MODEL: self.models,
            Kind.DEPLOYMENT: self._deployments,
            Kind.POD: self.pods,
            Kind.APPLICATION: self.applications,
            Kind.GRAPH: self.graphs,
            Kind.TENANT: self.tenants,
        }
        self._rules: dict[str, TenantRules] = {}
        """By pool; those that were asked for since pools or tenants changed."""
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
        before = self._stored[found.kind].get(found.name)
        if before is not None and before.uid == found.uid:
            self._put(found)

    def get(self, key: Key) -> ServiceObject | None:
        """What declares a model or a pool."""
        return None if key.name is None else self._stored[key.kind].get(key.name)

    def declared(self) -> Iterator[ServiceObject]:
        """All that declare models, and pools of KServe's."""
        return chain(self.services.values(), self.models.values())

    def namesake(self, service: ServiceObject) -> ServiceObject | None:
        """The older object of the other kind that declares a model of the same name."""
        other = self.model_of_other_kind(service.kind, service.name)
        if other is None or (service.created, service.kind) < (other.created, other.kind):
            return None
        return other

    def model_of_other_kind(self, kind: Kind, name: ModelName) -> ServiceObject | None:
        """The Model with the name of an InferenceService, or the other way round."""
        other = (self.models if kind is Kind.SERVICE else self.services).get(name)
        return other if other is not None and other.role is Role.MODEL else None

    def all_keys(self) -> Iterator[Key]:
        """Everything that there is to reconcile."""
        for each in chain(self.declared(), self._deployments.values()):
            yield Key(each.kind, each.name)
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
            self._report_rules(before, found)
            return
        if found.role is Role.POOL:
            self._pools.add(Key(found.kind, name))
        if before is None or before.resource_version != found.resource_version:
            self._report(before, found)

    def _remove(self, found: ClusterObject) -> None:
        name = _name(found)
        self._stored[found.kind].pop(name, None)
        if isinstance(found, PodObject):
            self.removed_pods.append(found)
        if not isinstance(found, ServiceObject):
            self.on_change(Key(found.kind))
            self._report_rules(found, None)
            return
        self._pools.discard(Key(found.kind, name))
        self._report(found, None)

    def _report(self, before: ServiceObject | None, after: ServiceObject | None) -> None:
        """A change, to what depends on it."""
        self._note_quotas(before, after)
        found = after or before
        assert found is not None
        self.on_change(Key(found.kind, found.name))
        for kind in (Kind.SERVICE, Kind.MODEL):
            if kind is not found.kind and found.name in self._stored[kind]:
                self.on_change(Key(kind, found.name))
        if self.is_pool(found):
            self._report_models_of(found.pool)

    def _report_rules(self, before: object, after: object) -> None:
        if before != after:
            for each in (before, after):
                if isinstance(each, TenantObject):
                    self._report_models_of(each.pool)

    def _report_models_of(self, pool: str) -> None:
        self._rules.clear()
        for kind in (Kind.TENANT, Kind.POD, Kind.GRAPH, Kind.APPLICATION):
            self.on_change(Key(kind))
        for each in self.declared():
            if each.role is Role.MODEL and each.pool == pool:
                self.on_change(Key(each.kind, each.name))

    def _note_quotas(self, before: ServiceObject | None, after: ServiceObject | None) -> None:
        known = [each for each in (before, after) if each is not None]
        shares = {each.quota_share for each in known}
        if len(shares) > 1 or len(known) == 1:
            self._changed_quotas |= {
                (known[0].name.namespace, share[0]) for share in shares if share is not None
            }

    def take_changed_quotas(self) -> list[Key]:
        """The models whose quotas other models use otherwise since the last call."""
        changed, self._changed_quotas = self._changed_quotas, set()
        return [
            Key(each.kind, each.name)
            for each in self.declared()
            if changed
            and each.quota_share is not None
            and (each.name.namespace, each.quota_share[0]) in changed
        ]

    def is_pool(self, service: ServiceObject) -> bool:
        """Whether the object describes a pool, in a namespace whose pools count."""
        return service.role is Role.POOL and (
            self._pool_namespaces is None or service.name.namespace in self._pool_namespaces
        )

    def pool(self, pool: str) -> ServiceObject | None:
        """The object of a pool; of several the oldest."""
        found = [each for each in self._all_pools() if each.pool == pool and not each.is_deleted]
        return min(found, key=lambda each: (each.created, each.name), default=None)

    def rules(self, pool: str) -> TenantRules:
        """What the ConfigMaps of tenants beside a pool grant; nothing without them."""
        if (found := self._rules.get(pool)) is None:
            service = self.pool(pool)
            found = self._rules[pool] = merged(
                each.rules
                for name, each in sorted(self.tenants.items())
                if service and each.pool == pool and name.namespace == service.name.namespace
            )
        return found

    def has_pool(self, pool: str) -> bool:
        return self.pool(pool) is not None

    def has_any(self, kind: Kind) -> bool:
        return bool(self._stored[kind])

    def pools(self) -> set[str]:
        return {each.pool for each in self._all_pools()}

    def _all_pools(self) -> list[ServiceObject]:
        found = (self._stored[key.kind][key.name] for key in self._pools if key.name is not None)
        return [each for each in found if self.is_pool(each)]

    def earlier_models(self, service: ServiceObject) -> Iterator[ModelSpec]:
        """The models that its namespace declared before it in the same pool."""
        return (
            each.spec
            for each in self.declared()
            if each.spec is not None
            and not each.is_deleted
            and each.pool == service.pool
            and each.name.namespace == service.name.namespace
            and (each.created, each.name) < (service.created, service.name)
        )


def _name(found: ClusterObject) -> ModelName:
    return ModelName(found.namespace, found.name) if isinstance(found, PodObject) else found.name
