"""The kinds of objects in one table: their names, what shows them, and what declares them.

`get`, `describe`, `apply` and `delete` read it, and so do names of objects, which are taken and
printed as kubectl does: with or without kind and namespace.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from gateway.management import Document
from pilotlight.commands import flags, views
from pilotlight.commands.target import PlatformTarget
from pilotlight.commands.views import View
from pilotlight.errors import InvalidInput
from pilotlight.output import fit
from registry.domain.application import ApplicationSpec
from registry.domain.cluster import ClusterState
from registry.domain.graph import KIND as GRAPH_DEFINITION
from registry.domain.graph import GraphSpec
from registry.domain.model import ModelName, ModelRecord, ModelSpec
from registry.errors import InvalidModel
from registry.inference_service.graph_reader import read_graphs
from registry.inference_service.model_resource import KIND as MODEL_KIND
from registry.inference_service.model_resource import declaring_kind
from registry.inference_service.reader import read_documents
from registry.inference_service.rollouts import rollout_of, trial_of
from registry.redis.client import Registry
from registry.redis.workflow_log import WorkflowLog
from variants.application import read_applications

Declared: TypeAlias = ModelSpec | ApplicationSpec | GraphSpec


@dataclass(frozen=True, slots=True)
class Listing:
    """The table of a kind; `row` has a cell per column."""

    columns: tuple[str, ...]
    row: Callable[[Document], tuple[str, ...]]
    optional: tuple[str, ...] = ()
    """Columns that a narrow terminal goes without, the first to go first."""
    wide: tuple[str, ...] = ()
    """Columns of `-o wide` alone."""
    passing: tuple[str, ...] = ()
    """Columns that change by time alone: `-w` does not print a row for that."""
    width: int | None = None
    """Characters of a line without `-o wide`: the longest values are shortened."""

    def table(
        self, documents: Sequence[Document], *, is_wide: bool
    ) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """The columns and the rows."""
        rows = [self.row(each) for each in documents]
        if is_wide:
            return self.columns, rows
        kept = [at for at, name in enumerate(self.columns) if name not in self.wide]
        columns = [self.columns[at] for at in kept]
        rows = [tuple(row[at] for at in kept) for row in rows]
        if self.width is not None:
            columns, fitted = fit(columns, rows, (), self.width)
            rows = list(map(tuple, fitted))
        return tuple(columns), rows


@dataclass(frozen=True, slots=True)
class Declaring:
    """How `apply` and `delete` change the objects of a kind."""

    spec: type[Declared]
    read: Callable[..., Sequence[Declared]]
    """The specs in `(source name, YAML text)` pairs. Raises InvalidModel."""
    put: Callable[[Registry, Any], Awaitable[list[str]]]
    """`created`, `configured` or `unchanged` for each spec. Raises InvalidModel."""
    present: Callable[[Registry, ClusterState, Any], Awaitable[tuple[object, object]]]
    """What is declared now under a spec's name, if anything, and what the spec would declare."""
    delete: Callable[[Registry, list[ModelName]], Awaitable[list[ModelName]]]
    """Returns the names that did not exist."""


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    name: str
    """Singular; the plural ends with an s."""
    resource: str
    """As kubectl prints it; empty: none of a cluster's objects."""
    short_names: tuple[str, ...]
    about: tuple[str, str]
    """Help of `get` and of `describe`."""
    listing: Listing
    view: Callable[[PlatformTarget, Any, str], Awaitable[View]]
    """Of the kind's objects; takes a Registry, if the flags address one, and a namespace."""
    flags: tuple[str, ...] = flags.REGISTRY
    complete: Callable[..., list[str]] | None = None
    is_namespaced: bool = True
    declared: Declaring | None = None
    other_resource: str = ""
    """A second one that declares the same."""
    undeletable: str = ""
    """Why `delete` does not delete the kind's objects, and what does."""

    @property
    def declaring(self) -> Declaring:
        """Of a kind of `DECLARED`."""
        assert self.declared is not None
        return self.declared

    @property
    def plural(self) -> str:
        return f"{self.name}s"

    @property
    def words(self) -> tuple[str, ...]:
        """All of its names, the plural first."""
        resource = self.resource.partition(".")[0]
        own = (resource, f"{resource}s") if resource else ()
        return (self.plural, self.name, *self.short_names, *own)


async def _put_graphs(registry: Registry, graphs: Sequence[GraphSpec]) -> list[str]:
    """Raises InvalidModel for those that have the name of a workflow, after the others."""
    log = WorkflowLog(registry)
    outcomes: list[str] = []
    problems: list[str] = []
    for graph in graphs:
        try:
            outcomes.append(await log.put_workflow(graph.name, graph.definition()))
        except InvalidModel as error:
            problems += error.problems
    if problems:
        raise InvalidModel(problems)
    return outcomes


async def _delete_graphs(registry: Registry, names: Iterable[ModelName]) -> list[ModelName]:
    log, absent = WorkflowLog(registry), []
    for name in names:
        definition = await log.workflow(name)
        if definition is None or definition["kind"] != GRAPH_DEFINITION:
            absent.append(name)
        else:
            await log.delete_workflow(name)
    return absent


async def _put_models(registry: Registry, specs: Sequence[ModelSpec]) -> list[str]:
    """With the canaries of their rollouts. Raises InvalidModel."""
    if not specs:
        return []
    models = {spec.name: ModelRecord(spec) for spec in specs}
    models |= (await registry.cluster()).models
    rollouts = [rollout_of(spec, models) for spec in specs]
    outcomes = await registry.put_models([each.put for each in rollouts])
    await registry.delete_models([each.ended for each in rollouts if each.ended])
    return [
        "configured" if outcome == "created" and each.put is not spec else outcome
        for spec, each, outcome in zip(specs, rollouts, outcomes, strict=True)
    ]


async def _delete_models(registry: Registry, names: list[ModelName]) -> list[ModelName]:
    """Returns the names that did not exist."""
    models = (await registry.cluster()).models if names else {}
    await registry.delete_models([trial for name in names if (trial := trial_of(name, models))])
    return await registry.delete_models(names)


async def _present_model(
    _: Registry, state: ClusterState, spec: ModelSpec
) -> tuple[object, object]:
    put = rollout_of(spec, state.models).put
    present = state.models.get(put.name) or state.models.get(spec.name)
    return getattr(present, "spec", None), put


async def _present_application(
    _: Registry, state: ClusterState, spec: ApplicationSpec
) -> tuple[object, object]:
    return state.applications.get(spec.name), spec


async def _present_graph(
    registry: Registry, _: ClusterState, spec: GraphSpec
) -> tuple[object, object]:
    return await WorkflowLog(registry).workflow(spec.name), spec.definition()


_WIDE: Final = ("ROUTING", "PODS", "AUTOSCALER", "URL")
MODEL: Final = Kind(
    "model",
    "inferenceservice.serving.kserve.io",
    ("isvc",),
    (
        "List models of all namespaces or of -n: readiness, routing policy, tier on each pod.",
        "Show a model's declaration, its state on each pod, and the autoscaler's actions on it.",
    ),
    Listing(
        ("NAME", "READY", "TIERS", "TRAFFIC", "AGE", "STATUS", *_WIDE),
        views.model_row,
        optional=("AGE", "TIERS"),
        wide=_WIDE,
        passing=("AGE",),
        width=120,
    ),
    views.view_models,
    complete=flags.complete_model,
    declared=Declaring(ModelSpec, read_documents, _put_models, _present_model, _delete_models),
    other_resource="model.pilotlight.io",
)
APPLICATION: Final = Kind(
    "application",
    "inferenceapplication.pilotlight.io",
    ("iapp",),
    (
        "List applications: deadline, selection policy, variants, and why others are left out.",
        "Show an application's classes and variants, with their accuracy and the pods they are on.",
    ),
    Listing(
        ("NAME", "READY", "DEADLINE", "SELECTION", "VARIANTS", "LEFT OUT"),
        views.application_row,
        optional=("SELECTION", "DEADLINE"),
    ),
    views.view_applications,
    declared=Declaring(
        ApplicationSpec,
        read_applications,
        Registry.put_applications,
        _present_application,
        Registry.delete_applications,
    ),
)
GRAPH: Final = Kind(
    "graph",
    "inferencegraph.serving.kserve.io",
    ("ig",),
    (
        "List InferenceGraphs: deadline, and the models and nodes that each node calls.",
        "Show an InferenceGraph's nodes.",
    ),
    Listing(("NAME", "DEADLINE", "NODES"), views.graph_row),
    views.view_graphs,
    declared=Declaring(GraphSpec, read_graphs, _put_graphs, _present_graph, _delete_graphs),
)
_POD_COLUMNS: Final = (
    "NAME", "NODE", "PHASE", "USE", "SLOTS", "WARM MODELS", "DEVICE", "HOST", "DISK", "LOADS",
    "ACCELERATOR", "GPU", "PLACED",
)  # fmt: skip
POD: Final = Kind(
    "pod",
    "",
    ("po",),
    (
        "List pods: node, phase, slots, warm models, bytes held in each tier.",
        "Show a pod's address, phase, memory by tier and the tier of each of its models.",
    ),
    Listing(
        _POD_COLUMNS,
        views.pod_row,
        optional=("LOADS", "DISK", "HOST", "PLACED", "NODE", "GPU", "ACCELERATOR", "USE"),
    ),
    views.view_pods,
    complete=flags.complete_pod,
    is_namespaced=False,
    undeletable="are processes of the platform: `pilotlight up --pods` sets their number",
)
WORKFLOW: Final = Kind(
    "workflow",
    "",
    (),
    (
        "List the workflows of a namespace: parameters and deadline.",
        "Show a workflow's parameters and deadline.",
    ),
    Listing(("NAMESPACE", "NAME", "KIND", "PARAMETERS", "DEADLINE"), views.workflow_row),
    views.view_workflows,
    flags.GATEWAY,
    undeletable="are deleted by `pilotlight workflow delete NAME`",
)
KINDS: Final = (MODEL, POD, WORKFLOW, APPLICATION, GRAPH)
DECLARED: Final[Mapping[type[Declared], Kind]] = {
    each.declaring.spec: each for each in (MODEL, APPLICATION, GRAPH)
}
"""What `apply` declares, in this order, by the type of the spec."""


@dataclass(frozen=True, slots=True)
class ObjectName:
    kind: Kind | None
    """None: whatever has the name."""
    name: ModelName


def parse_object_names(names: Sequence[str], namespace: str | None) -> list[ObjectName]:
    """`NAME` and `KIND/NAME`, or a kind before all names; `NAMESPACE/NAME` for `NAME` as well."""
    kind = _parse_kind(names[0]) if len(names) > 1 else None
    texts = names if kind is None else names[1:]
    parsed = [_parse(text, namespace, kind) for text in texts]
    problems = [
        f"a name is NAME, NAMESPACE/NAME or KIND/NAME, was {text!r}"
        for text, each in zip(texts, parsed, strict=True)
        if not each.name.name or not each.name.namespace or "/" in each.name.name
    ]
    if problems:
        raise InvalidInput(problems)
    return list(dict.fromkeys(parsed))


def parse_model_names(names: Sequence[str], namespace: str | None) -> list[ModelName]:
    """The same for a command that takes objects of one kind, and none before the names."""
    return [each.name for text in names for each in parse_object_names([text], namespace)]


def resource_of(spec: Declared) -> str:
    """As kubectl prints it."""
    kind = DECLARED[type(spec)]
    is_ours = isinstance(spec, ModelSpec) and declaring_kind(spec) == MODEL_KIND
    return kind.other_resource if is_ours else kind.resource


def shown_name(name: ModelName) -> str:
    """The name, with its namespace unless that is `default`."""
    return str(name).removeprefix("default/")


def _parse(text: str, namespace: str | None, kind: Kind | None) -> ObjectName:
    word, _, rest = text.partition("/")
    own = _parse_kind(word) if rest else None
    if own is not None and word != own.plural:  # which may be the name of a namespace
        kind, text = own, rest
    name = ModelName.parse(text) if "/" in text else ModelName(namespace or "default", text)
    return ObjectName(kind, name)


def _parse_kind(text: str) -> Kind | None:
    """The kind of `inferenceservice`, `isvc` or `inferenceservices.v1beta1.serving.kserve.io`."""
    word, _, group = text.lower().partition(".")
    kind = next((each for each in KINDS if word in each.words), None)
    resources = () if kind is None else (kind.resource, kind.other_resource)
    groups = [own for each in resources if (own := each.partition(".")[2])]
    return kind if not group or any(f".{group}".endswith(f".{own}") for own in groups) else None
