"""The objects that the controller reads from the API server. Pure.

A pool has the label `pilotlight.io/pool`, which KServe copies to its pods; a model names its pool
in the annotation of the same name. So does an application, else it belongs to the pool `default`.
Graphs with the annotation are served by that pool; KServe writes the status of all graphs. A
tenant's ConfigMap has the label `pilotlight.io/tenant-of` with the name of a pool of its namespace.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

from registry.domain.application import KIND as APPLICATION
from registry.domain.application import ApplicationSpec
from registry.domain.graph import GraphSpec
from registry.domain.model import ModelName, ModelSpec
from registry.domain.tenant_rules import TenantRules, merged, parse_rules
from registry.errors import InvalidModel
from registry.inference_service import graph_reader
from registry.inference_service.annotations import PREFIX, parse_annotations
from registry.inference_service.components import (
    COMPONENTS,
    EXPLAINER,
    TRANSFORMER,
    cluster_needs,
    component_address,
    machine_needs,
)
from registry.inference_service.graph_reader import read_graph
from registry.inference_service.model_resource import KIND as MODEL
from registry.inference_service.model_resource import MODE, MODEL_MODE, is_model
from registry.inference_service.predictors import join_needs, needs_without
from registry.inference_service.reader import API_VERSION, KIND, read_object
from variants.application import API_VERSION as APPLICATION_API
from variants.application import read_application

POOL = PREFIX + "pool"
TENANT_OF = PREFIX + "tenant-of"
FINALIZER = PREFIX + "unload"
KSERVE_FINALIZER = "inferenceservice.finalizers"
"""KServe 0.20 never removes it from a model in mode ModelMesh that has lost its transformer."""
WARM = "Warm"
"""Condition that only models of a pool have."""
OWNER = "controller.pilotlight.io/uid"
"""Annotation in the registry only: uid of the InferenceService that declares the model."""
_FORMER_RULES = frozenset(PREFIX + name for name in ("namespaces", "storage-prefixes", "quotas"))
"""Annotations of pools in earlier releases: a change of them replaced the pods."""
_DROPPED_ANNOTATIONS = ("kubectl.kubernetes.io/last-applied-configuration",)


BOUNDS = {"minReplicas": PREFIX + "min-replicas", "maxReplicas": PREFIX + "max-replicas"}
"""Annotations of a pool that is a Deployment, by field of an InferenceService."""


class Role(StrEnum):
    """What an InferenceService, Model or Deployment describes."""

    POOL = "pool"
    MODEL = "model"
    MISPLACED = "misplaced"
    """A model of a pool in a deployment mode in which KServe creates pods for it."""
    OTHER = "other"


class Kind(StrEnum):
    """The kinds of objects that the controller watches."""

    SERVICE = "InferenceServices"
    MODEL = "Models"
    DEPLOYMENT = "Deployments"
    """Pools on a cluster without KServe."""
    POD = "pods"
    APPLICATION = "InferenceApplications"
    GRAPH = "InferenceGraphs"
    TENANT = "ConfigMaps of tenants"
    ROUTE = "InferencePools and HTTPRoutes"
    """Made by the controller, and not watched."""


RESOURCES: Final[Mapping[Kind, tuple[str, str, str]]] = {
    Kind.SERVICE: ("serving.kserve.io", "v1beta1", "inferenceservices"),
    Kind.MODEL: ("pilotlight.io", "v1alpha1", "models"),
    Kind.DEPLOYMENT: ("apps", "v1", "deployments"),
    Kind.POD: ("", "v1", "pods"),
    Kind.APPLICATION: ("pilotlight.io", "v1alpha1", "inferenceapplications"),
    Kind.GRAPH: ("serving.kserve.io", "v1alpha1", "inferencegraphs"),
    Kind.TENANT: ("", "v1", "configmaps"),
}
"""Group, version and plural."""
_NAMES: Final = {Kind.SERVICE: KIND, Kind.MODEL: MODEL, Kind.DEPLOYMENT: "Deployment"}


@dataclass(frozen=True, slots=True)
class ServiceObject:
    """An InferenceService, a Model, or the Deployment of a pool: what the controller uses of it."""

    name: ModelName
    uid: str
    resource_version: str
    generation: int
    created: str
    """RFC 3339."""
    role: Role
    pool: str
    """Name of the pool, or of a model's pool; empty: none."""
    is_deleted: bool
    finalizers: tuple[str, ...]
    spec: ModelSpec | None
    problems: tuple[str, ...]
    """Mistakes in annotations or model, one line each."""
    status: Mapping[str, Any]
    kind: Kind = Kind.SERVICE
    components: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Transformer and explainer of a model, as declared."""

    @property
    def reference(self) -> tuple[str, str]:
        """API version and kind, as other objects refer to it."""
        group, version, _ = RESOURCES[self.kind]
        return f"{group}/{version}", _NAMES[self.kind]

    @property
    def version(self) -> int:
        """Versions of one resource may be compared (Kubernetes 1.35)."""
        return int(self.resource_version) if self.resource_version.isdigit() else 0

    @property
    def quota_share(self) -> tuple[str, bool, int] | None:
        """Its pool, and what counts there against quotas of its namespace; None: nothing does."""
        policy = None if self.spec is None or self.is_deleted else self.spec.policy
        if policy is None or not (policy.pin or policy.min_copies):
            return None
        return self.pool, policy.pin, policy.min_copies

    @property
    def concerns_us(self) -> bool:
        """False for those that KServe alone serves."""
        return self.role is not Role.OTHER or self.was_model

    @property
    def was_model(self) -> bool:
        """It has the finalizer, or shows the status, of a model of a pool."""
        conditions = self.status.get("conditions") or ()
        return self.has_finalizer or any(each.get("type") == WARM for each in conditions)

    @property
    def has_finalizer(self) -> bool:
        return FINALIZER in self.finalizers


def read_service(document: Mapping[str, Any]) -> ServiceObject:
    """Read an object that passed the API server's schema validation."""
    metadata = document["metadata"]
    status = document.get("status") or {}
    role = role_of(document)
    problems: tuple[str, ...] = ()
    spec = None
    if role is Role.MODEL:
        try:
            spec = declared_model(document)
        except InvalidModel as error:
            problems = tuple(error.problems)
    elif role is Role.MISPLACED:
        problems = (mode_problem(document),)
    elif role is Role.POOL:
        problems = annotation_problems(document)
    return ServiceObject(
        name=ModelName(metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        generation=metadata.get("generation", 0),
        created=metadata["creationTimestamp"],
        role=role,
        pool=_pool(document, role),
        is_deleted="deletionTimestamp" in metadata,
        finalizers=tuple(metadata.get("finalizers") or ()),
        spec=spec,
        problems=problems,
        status=status,
        kind=next((k for k, name in _NAMES.items() if name == document.get("kind")), Kind.SERVICE),
        components={}
        if spec is None or spec.is_stopped
        else {k: v for k, v in document["spec"].items() if k in COMPONENTS and v.get("containers")},
    )


def read_model(document: Mapping[str, Any]) -> ServiceObject:
    return read_service({**document, "kind": MODEL})


def read_deployment(document: Mapping[str, Any]) -> ServiceObject:
    """A pool, unless another object owns it, as KServe's InferenceServices own theirs."""
    owned = Role.OTHER if document["metadata"].get("ownerReferences") else Role.POOL
    return replace(read_service({**document, "kind": "Deployment"}), role=owned)


def role_of(document: Mapping[str, Any]) -> Role:
    metadata = document.get("metadata") or {}
    if is_model(document):
        return Role.MODEL
    if POOL in (metadata.get("labels") or {}):
        return Role.POOL
    if POOL not in (metadata.get("annotations") or {}):
        return Role.OTHER
    return Role.MODEL if mode_of(document) == MODEL_MODE else Role.MISPLACED


def mode_of(document: Mapping[str, Any]) -> str:
    """The deployment mode that KServe uses: the status takes precedence over the annotation."""
    recorded = (document.get("status") or {}).get("deploymentMode")
    annotations = (document.get("metadata") or {}).get("annotations") or {}
    return str(recorded or annotations.get(MODE, ""))


def declared_model(document: Mapping[str, Any]) -> ModelSpec:
    """The model that an object declares, with its `OWNER`. Raises InvalidModel."""
    spec = read_object({"apiVersion": API_VERSION, "kind": KIND, **document})
    declared = document["spec"]
    address = {
        each: component_address(spec.name, each) for each in COMPONENTS if declared.get(each)
    }
    kept = [pair for pair in spec.annotations if pair[0] not in _DROPPED_ANNOTATIONS]
    kept.append((OWNER, str(document["metadata"].get("uid", ""))))
    return replace(
        spec,
        annotations=tuple(sorted(kept)),
        needs=join_needs(
            needs_without(spec.needs, machine_needs(declared)), cluster_needs(declared)
        ),
        transformer=address.get(TRANSFORMER, ""),
        explainer=address.get(EXPLAINER, ""),
    )


def owner_of(spec: ModelSpec) -> str | None:
    """Uid of the InferenceService that declares a registered model; None: declared otherwise."""
    return dict(spec.annotations).get(OWNER)


def annotation_problems(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Mistakes in the annotations of an object that is not a model."""
    annotations = (document.get("metadata") or {}).get("annotations") or {}
    problems: list[str] = []
    if role_of(document) is Role.POOL:
        problems += [
            f"metadata.annotations[{key}] has no effect any more; remove it and make a ConfigMap "
            f"with the label {TENANT_OF} for each tenant: docs/kubernetes.md, 'Storage of tenants'"
            for key in sorted(annotations.keys() & _FORMER_RULES)
        ]
        own = {*_FORMER_RULES, *BOUNDS.values()}
        annotations = {key: annotations[key] for key in annotations.keys() - own}
    problems += parse_annotations(annotations).problems
    return tuple(f"{_title(document)}: {problem}" for problem in problems)


def mode_problem(document: Mapping[str, Any]) -> str:
    """Why an object that names a pool is not served as a model, and what to change."""
    recorded = (document.get("status") or {}).get("deploymentMode")
    if recorded:
        return (
            f"{_title(document)}: status.deploymentMode is {recorded!r} and cannot change; a model "
            f"of a pool needs {MODEL_MODE!r}; delete the InferenceService and create it again with "
            f"the annotation {MODE}: {MODEL_MODE}"
        )
    mode = ((document.get("metadata") or {}).get("annotations") or {}).get(MODE)
    return (
        f"{_title(document)}: metadata.annotations[{MODE}] must be {MODEL_MODE!r} for a model of a "
        f"pool, was {mode!r}"
    )


def name_problem(other: ServiceObject) -> str:
    """Why an object is not served that has the name of an older one of the other kind."""
    return (
        f"metadata.name must be another one: {other.reference[1]} {other.name} declares the model "
        "already; delete one of both"
    )


def _title(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata") or {}
    kind = document.get("kind", KIND)
    return f"{kind} {metadata.get('namespace', 'default')}/{metadata.get('name', '')}"


def _pool(document: Mapping[str, Any], role: Role) -> str:
    metadata = document["metadata"]
    if is_model(document):
        return str(document["spec"].get("pool", _DEFAULT_POOL))
    if role is Role.POOL:
        return str(metadata["labels"][POOL])
    return str((metadata.get("annotations") or {}).get(POOL, ""))


SERVICE = "serving.kserve.io/inferenceservice"
REVISION = "serving.knative.dev/revision"
GENERATION = "serving.knative.dev/configurationGeneration"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_DEFAULT_POOL: Final = "default"
_Spec = TypeVar("_Spec", ApplicationSpec, GraphSpec)


@dataclass(frozen=True, slots=True)
class PodObject:
    """A pod of a pool: the fields that the controller uses."""

    kind: ClassVar[Kind] = Kind.POD

    namespace: str
    name: str
    uid: str
    pool: str
    service: str
    """The InferenceService it belongs to."""
    is_ending: bool
    """Marked for deletion, or finished."""
    deletion_cost: int
    revision: str = ""
    """Knative Revision; empty in other modes."""
    generation: int = 0
    """Generation of the Knative Configuration: higher in newer Revisions."""


def read_pod(document: Mapping[str, Any]) -> PodObject:
    """Read an object that passed the API server's schema validation."""
    metadata = document["metadata"]
    labels = metadata.get("labels") or {}
    status = document.get("status") or {}
    generation = labels.get(GENERATION, "")
    cost = (metadata.get("annotations") or {}).get(DELETION_COST, "0")
    return PodObject(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        pool=labels.get(POOL, ""),
        service=labels.get(SERVICE, ""),
        is_ending="deletionTimestamp" in metadata or status.get("phase") in ("Succeeded", "Failed"),
        deletion_cost=int(cost) if cost.removeprefix("-").isdigit() else 0,
        revision=labels.get(REVISION, ""),
        generation=int(generation) if generation.isdigit() else 0,
    )


@dataclass(frozen=True, slots=True)
class ApplicationObject:
    """An InferenceApplication: the fields that the controller uses."""

    kind: ClassVar[Kind] = Kind.APPLICATION

    name: ModelName
    uid: str
    resource_version: str
    generation: int
    pool: str
    is_deleted: bool
    spec: ApplicationSpec | None
    """With the object's uid as its owner; None if it has mistakes."""
    problems: tuple[str, ...]
    status: Mapping[str, Any]


def read_application_object(document: Mapping[str, Any]) -> ApplicationObject:
    metadata = document["metadata"]
    head = (APPLICATION_API, APPLICATION)
    spec, problems = _read_spec(read_application, head, document)
    return ApplicationObject(
        name=ModelName(metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        generation=metadata.get("generation", 0),
        pool=str((metadata.get("annotations") or {}).get(POOL, _DEFAULT_POOL)),
        is_deleted="deletionTimestamp" in metadata,
        spec=spec,
        problems=problems,
        status=document.get("status") or {},
    )


@dataclass(frozen=True, slots=True)
class GraphObject:
    """An InferenceGraph: the fields that the controller uses."""

    kind: ClassVar[Kind] = Kind.GRAPH

    name: ModelName
    uid: str
    pool: str
    """Empty: it is not ours."""
    is_deleted: bool
    spec: GraphSpec | None
    """With the object's uid as its owner; None if it has mistakes or is not ours."""
    problems: tuple[str, ...]


def read_graph_object(document: Mapping[str, Any]) -> GraphObject:
    metadata = document["metadata"]
    pool = str((metadata.get("annotations") or {}).get(POOL, ""))
    head = (graph_reader.API_VERSION, graph_reader.KIND)
    spec, problems = _read_spec(read_graph, head, document) if pool else (None, ())
    return GraphObject(
        name=ModelName(metadata["namespace"], metadata["name"]),
        uid=str(metadata.get("uid", "")),
        pool=pool,
        is_deleted="deletionTimestamp" in metadata,
        spec=spec,
        problems=problems,
    )


@dataclass(frozen=True, slots=True)
class TenantObject:
    """A ConfigMap that says what a pool grants to a namespace, or (`*`) to all."""

    kind: ClassVar[Kind] = Kind.TENANT

    name: ModelName
    uid: str
    pool: str
    rules: TenantRules
    """Nothing if it has mistakes."""
    problems: tuple[str, ...] = ()


_TENANT_KEYS: Final = {"namespace", "admit", "storage-prefixes", "quotas"}


def read_tenant(document: Mapping[str, Any]) -> TenantObject:
    metadata, data = document["metadata"], document.get("data") or {}
    tenant, admits = data.get("namespace", "").strip(), data.get("admit", "true").strip()
    problems = [f"data.{key} is unknown" for key in sorted(data.keys() - _TENANT_KEYS)]
    if not tenant or admits not in ("true", "false"):
        problems.append("data.namespace must be a namespace or '*', data.admit 'true' or 'false'")
    rules = merged(())
    try:
        rules = parse_rules(
            namespaces=tenant,
            prefixes=f"{tenant}={data.get('storage-prefixes', '')}".replace("\n", " "),
            quotas=f"{tenant}={data.get('quotas', '')}".replace("\n", " "),
        )
    except ValueError as error:
        problems += str(error).splitlines()
    if (rules.prefixes.keys() | rules.quotas.keys()) - {tenant}:
        problems.append(f"data may say what namespace {tenant!r} gets, no other: leave out ';'")
    if admits == "false":
        rules = replace(rules, namespaces=frozenset())
    return TenantObject(
        ModelName(metadata["namespace"], metadata["name"]),
        metadata["uid"],
        (metadata.get("labels") or {}).get(TENANT_OF, ""),
        merged(()) if problems else rules,
        tuple(problems),
    )


ClusterObject: TypeAlias = (
    ServiceObject | PodObject | ApplicationObject | GraphObject | TenantObject
)


def _read_spec(
    read: Callable[[dict[str, Any], str], _Spec], head: tuple[str, str], document: Mapping[str, Any]
) -> tuple[_Spec | None, tuple[str, ...]]:
    """With the object's uid as its owner, or the mistakes. `head`: where lists leave it out."""
    api_version, kind = head
    try:
        spec = read({"apiVersion": api_version, "kind": kind, **document}, "cluster")
    except InvalidModel as error:
        return None, tuple(error.problems)
    return replace(spec, owner=str(document["metadata"].get("uid", ""))), ()
