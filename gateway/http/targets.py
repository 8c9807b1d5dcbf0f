"""The target of an inference request: its model, by path or Host, and the serving component."""

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final
from urllib.parse import quote

from registry.domain.canaries import Canary
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelSpec
from registry.inference_service.components import EXPLAINER, TRANSFORMER

_ADDRESS: Final = re.compile(r"[0-9.]+|\[.*\]|localhost")
_FOLDER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_OWN_SERVICE: Final = "pilotlight-gateway"
"""The gateway's Service, which may be in a namespace that has models."""

PREDICTOR_SUFFIX: Final = "-predictor"


class Verb(StrEnum):
    """The operation that an inference path of KServe's protocols names."""

    PREDICT = "predict"
    EXPLAIN = "explain"
    INFER = "infer"


@dataclass(frozen=True, slots=True)
class ComponentTarget:
    """A component of a model, with the address and path of the request there."""

    component: str
    """`transformer` or `explainer`."""
    address: str
    """`host:port` of its Service."""
    path: bytes
    """The request's path there: KServe's, without our prefixes."""

    @property
    def host(self) -> str:
        """Value of the `host` header: without the default port."""
        return self.address.removesuffix(":80")


def component_of(
    spec: ModelSpec, *, verb: Verb | None, openai_endpoint: str | None, is_direct: bool
) -> ComponentTarget | None:
    """The component that serves a request to a declared model; None: the model itself.

    The explainer serves `:explain`, the transformer all other requests, the model those that its
    components send to `NAME-predictor` (`is_direct`). Source: KServe 0.20, `ingress_reconciler.go`.
    `verb`: None for OpenAI's protocol.
    """
    component = EXPLAINER if verb is Verb.EXPLAIN else TRANSFORMER
    address = spec.explainer if verb is Verb.EXPLAIN else spec.transformer
    if is_direct or not address:
        return None
    name = quote(spec.name.name, safe="")
    path = f"/openai/v1/{openai_endpoint}" if verb is None else kserve_path(name, verb)
    return ComponentTarget(component, address, path.encode())


def kserve_path(name: str, verb: Verb) -> str:
    """Path of a request by KServe's protocols; `name`: escaped as a segment of a path."""
    return f"/v2/models/{name}/infer" if verb is Verb.INFER else f"/v1/models/{name}:{verb}"


class KnownNames:
    """The names that a Host may have: those of models and applications of all pools."""

    def __init__(self, *states: ClusterState, domain: str = "") -> None:
        """`domain`: domain of models' Hosts, such as `example.com`; empty: unknown."""
        self.states = list(states)
        """One per pool."""
        self.domain = domain
        self._namespaces: frozenset[str] = frozenset()
        self._namespaces_version = -1

    def add(self, state: ClusterState) -> None:
        """Add another pool's names."""
        self.states.append(state)

    @property
    def version(self) -> int:
        """Grows with every change of the names."""
        version = 0
        for state in self.states:
            version += state.models_version
        return version

    @property
    def namespaces(self) -> frozenset[str]:
        """Those with declared models or applications, now or earlier in this process.

        Else a Host of a namespace's last model would count as the gateway's own after its deletion.
        """
        if self._namespaces_version != self.version:
            self._namespaces_version = self.version
            self._namespaces |= {
                name.namespace
                for each in self.states
                for names in (each.models, each.applications)
                for name in names
            }
        return self._namespaces

    def has_alias(self, name: ModelName, called: str) -> bool:
        """Whether a declared model may be called so at its own Host or prefix.

        A model of Triton's format may have the name of its folder, which only pods know: there any
        name is accepted.
        """
        spec = next((each.models[name].spec for each in self.states if name in each.models), None)
        if spec is None or not called:
            return False
        is_folder = spec.format == "triton" and _FOLDER.fullmatch(called) is not None
        return called == spec.served_name or is_folder

    def __contains__(self, name: object) -> bool:
        """True for a declared model or application."""
        return any(name in each.models or name in each.applications for each in self.states)


def model_of_host(host: str, known: KnownNames, asked: str = "") -> ModelName | None:
    """The model that a Host such as `NAME.NAMESPACE.example.com` names; None: the gateway's own.

    KServe's forms: `NAME.NAMESPACE.…`, `NAME-predictor.NAMESPACE.…`, `NAME-NAMESPACE.DOMAIN`. A
    Host of such a form without a declared model still names that model, so that no model of the
    same name in another namespace responds. `asked`: the model that the path names.
    """
    labels = labels_of(host)
    if len(labels) < 2:
        return None
    first, second = labels[0].removesuffix(PREDICTOR_SUFFIX), labels[1]
    joined = _joined_names(first)
    for name in (ModelName(second, labels[0]), ModelName(second, first), *joined):
        if name in known:
            return name
    if known.domain and ".".join(labels).endswith(f".{known.domain}"):
        inner = labels[: -1 - known.domain.count(".")]
        if len(inner) > 1:
            return ModelName(second, first)
        return next((name for name in joined if name.name == asked), joined[-1] if joined else None)
    may_be_model = not known.domain and second in known.namespaces  # unknown: any domain may be
    if first == asked or (may_be_model and first != _OWN_SERVICE):
        return ModelName(second, first)
    return next(
        (name for name in joined if name.name == asked and name.namespace in known.namespaces), None
    )


def _joined_names(label: str) -> list[ModelName]:
    """The models that a label `NAME-NAMESPACE` may mean."""
    parts = label.split("-")
    return [
        ModelName("-".join(parts[cut:]), "-".join(parts[:cut]))
        for cut in range(1, len(parts))
        if all((parts[cut - 1], parts[cut]))
    ]


def labels_of(host: str) -> list[str]:
    """Labels of a host's name without its port; none of an address."""
    host = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return [] if not host or _ADDRESS.fullmatch(host) else host.lower().split(".")


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """The model of an inference request, and the request's path at a pod."""

    model: ModelName
    name: str
    """The model's name as the caller wrote it, for `model_name` in the response."""
    verb: Verb | None = None
    """None for OpenAI's protocol."""
    openai_endpoint: str | None = None
    """Key of `openai.ENDPOINTS`; None for KServe's protocols."""
    is_named: bool = True
    """False if the body names the model, not path or Host."""
    version: bytes = b""
    """Name of the selected version, where the model has canaries."""
    canaries: tuple[Canary, ...] = ()
    selection_lines: bytes = b""
    """Header lines of the response about the variant, where the target is an application."""
    without_host: "ModelTarget | None" = None
    """The target that the path alone names, where the Host named the model."""
    is_plain: bool = False
    """Neither prefix nor Host names a namespace: `default` applies, or that of the caller's key."""
    is_direct: bool = False
    """The Host names the predictor, at which transformer and explainer call the model."""
    component: ComponentTarget | None = None
    """The component that serves the request; None: the model itself."""
    pod_path: bytes = field(init=False)
    label: str = field(init=False)
    """The model as a metric label: `namespace/name`."""

    def __post_init__(self) -> None:
        segment = self.model.path_segment
        if self.verb is None:
            path = f"/serving/{segment}/openai/v1/{self.openai_endpoint}"
        else:
            path = kserve_path(segment, self.verb)
        object.__setattr__(self, "pod_path", path.encode())
        object.__setattr__(self, "label", str(self.model))


def target_of_version(target: ModelTarget, model: ModelName) -> ModelTarget:
    """The target for one of the model's versions, with that version's path at pods."""
    return replace(target, model=model, version=model.name.encode())


def target_in_namespace(target: ModelTarget, namespace: str) -> ModelTarget:
    """The target of a plain path, of the same name in another namespace than `default`."""
    model = ModelName(namespace, target.model.name)
    return replace(target, model=model, canaries=(), component=None)


def target_of_variant(
    target: ModelTarget, model: ModelName, *, accuracy: float, utility: float
) -> ModelTarget:
    """The target for one variant of an application; responses have the application's name."""
    lines = (
        f"x-pilotlight-variant: {model.name}\r\n"
        f"x-pilotlight-expected-accuracy: {accuracy:.4f}\r\n"
        f"x-pilotlight-expected-utility: {utility:.4f}\r\n"
    )
    return replace(target, model=model, version=b"", selection_lines=lines.encode())


def openai_target(namespace: str, name: str | None, endpoint: str) -> ModelTarget:
    """The target of an OpenAI request; without a name it is preliminary until the body is read."""
    model = ModelName(namespace, name or "")
    return ModelTarget(model, model.name, openai_endpoint=endpoint, is_named=name is not None)
