"""Objects of YAML files: which kinds are declared, passed over or refused; checks; storage URIs.

A file of KServe's users holds more than models: their Secrets, accounts and namespaces, and Lists
as `kubectl get -o yaml` writes them.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

import yaml

from common.shown_value import shown
from registry.domain.model import ModelName
from registry.errors import InvalidModel, InvalidYaml

DECLARED_KINDS: Final = ("InferenceService", "Model", "InferenceApplication", "InferenceGraph")
_CREDENTIALS: Final = (
    "on one machine `pilotlight up` reads storage credentials from its environment, such as "
    "AWS_ACCESS_KEY_ID; on a cluster apply it with kubectl"
)
_OF_CLUSTER: Final = (
    "ConfigMap", "ClusterRole", "ClusterRoleBinding", "LimitRange", "NetworkPolicy",
    "ResourceQuota", "Role", "RoleBinding",
)  # fmt: skip
_CLUSTER_ONLY: Final = "only a cluster has it: apply it with kubectl"
_VOLUME: Final = "on one machine a model's storageUri is a file:// folder in place of pvc://"
_RUNTIME: Final = "pods of a pool have their own engines, and a model's files choose among them"
_CACHE: Final = "every node caches models by itself, in its pods' cache folder"
LEFT_KINDS: Final[Mapping[str, str]] = {
    "Secret": _CREDENTIALS,
    "ServiceAccount": _CREDENTIALS,
    "Namespace": "a namespace exists here as soon as a model names it",
    "PersistentVolume": _VOLUME,
    "PersistentVolumeClaim": _VOLUME,
    **dict.fromkeys(_OF_CLUSTER, _CLUSTER_ONLY),
    "ServingRuntime": _RUNTIME,
    "ClusterServingRuntime": _RUNTIME,
    "ClusterStorageContainer": "pods read the storage themselves: s3, gs, https, hf, pvc, file",
    **dict.fromkeys(
        ("LocalModelCache", "LocalModelNamespaceCache", "LocalModelNode", "LocalModelNodeGroup"),
        _CACHE,
    ),
    "LLMInferenceServiceConfig": "it configures LLMInferenceServices, which are not served",
}
"""Kinds that declare no model, and what stands in their place here."""
_WITHOUT_NAMESPACE: Final = ("Namespace", "PersistentVolume", "LocalModelCache")
_FROM_V1ALPHA2: Final = (
    "KServe has ended that version: move spec.default.predictor to spec.predictor, its custom."
    "container to containers, and spec.canary to an object of its own with the annotations"
    " pilotlight.io/canary-of and pilotlight.io/canary-percent"
)
_REFUSED_KINDS: Final[Mapping[str, str]] = {
    "TrainedModel": (
        "a pool serves many models without it: declare an InferenceService with the storageUri of "
        "its spec.model"
    ),
    "LLMInferenceService": (
        "declare an InferenceService with modelFormat huggingface and, as storageUri, the uri of "
        "its spec.model"
    ),
    "Predictor": (
        "declare an InferenceService with its spec.modelType as modelFormat and its spec.path and "
        "spec.storage.s3 as storage"
    ),
}
"""Kinds that declare a model in a way that is not read here."""


def objects_of(text: str) -> list[Any]:
    """The objects of YAML, with items of Lists in place of these. Fields that are null are unset.

    Raises InvalidYaml.
    """
    found: list[Any] = []
    for document in read_yaml(text, keeps_nulls=False):
        found += _items(document) if _is_list(document) else [document]
    return found


def _is_list(document: object) -> bool:
    return isinstance(document, dict) and _kind_of(document).endswith("List")


def _items(listed: dict[str, Any]) -> list[Any]:
    """The items, with the kind of a list such as InferenceServiceList, whose items may lack it."""
    items = listed.get("items", [])
    if not isinstance(items, list):
        raise InvalidYaml(f"items of a {listed['kind']} must be a list, was {shown(items)}")
    if any(map(_is_list, items)):
        raise InvalidYaml(f"a {listed['kind']} may not hold another list")
    kind = listed["kind"].removesuffix("List")
    if not kind:
        return items
    given = {"apiVersion": listed.get("apiVersion"), "kind": kind}
    return [given | item if isinstance(item, dict) else item for item in items]


def left_objects(
    sources: Sequence[tuple[str, str]], *, default_namespace: str = "default"
) -> list[str]:
    """A line for each object of `(source name, YAML text)` pairs that is passed over."""
    lines: list[str] = []
    for _, text in sources:
        try:
            objects = objects_of(text)
        except InvalidYaml:
            continue
        lines += [
            f"left: {title_of(each, default_namespace)}: {LEFT_KINDS[each['kind']]}"
            for each in objects
            if is_left(each)
        ]
    return lines


def is_left(document: object) -> bool:
    return isinstance(document, dict) and _kind_of(document) in LEFT_KINDS


def kind_problem(document: dict[str, Any]) -> str:
    """Why an object of its kind is refused; empty for those that are declared."""
    kind = _kind_of(document)
    if kind in DECLARED_KINDS:
        return ""
    advice = _REFUSED_KINDS.get(kind, "")
    known = f"kind must be one of {', '.join(DECLARED_KINDS)}, was {shown(document.get('kind'))}"
    return f"{known}; {advice}" if advice else known


def title_of(document: dict[str, Any], default_namespace: str) -> str:
    """Kind, namespace and name, as far as the object has them."""
    metadata = document.get("metadata")
    fields = metadata if isinstance(metadata, dict) else {}
    kind, name = _kind_of(document), _text(fields.get("name"))
    namespace = fields.get("namespace") or default_namespace
    is_of_cluster = kind in _WITHOUT_NAMESPACE or kind.startswith("Cluster")
    return f"{kind or 'object'} {name if is_of_cluster else f'{_text(namespace)}/{name}'}"


def _kind_of(document: dict[str, Any]) -> str:
    kind = document.get("kind")
    return kind if isinstance(kind, str) and len(kind) <= 100 and kind.isalnum() else ""


def _text(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= 253 else shown(value)


_RAISED = (
    yaml.YAMLError, ValueError, LookupError, ArithmeticError, AttributeError, TypeError,
    RecursionError,
)  # fmt: skip
"""What PyYAML raises at invalid input: its tags for times, numbers and booleans check little."""


MAX_DEPTH: Final = 64
"""Of brackets and braces: PyYAML's time grows with its square."""
MAX_FIELDS: Final = 10_000
"""Of one mapping: merge keys of merge keys would multiply."""


class _Unconstructed(yaml.constructor.ConstructorError):
    def __init__(self, problem: str, node: yaml.Node) -> None:
        super().__init__(None, None, problem, node.start_mark)


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys, text that JSON cannot carry, and what takes long to read."""

    def fetch_flow_collection_start(self, token: type[yaml.Token]) -> None:
        if self.flow_level >= MAX_DEPTH:
            raise yaml.scanner.ScannerError(
                None, None, f"more than {MAX_DEPTH} brackets inside each other", self.get_mark()
            )
        super().fetch_flow_collection_start(token)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > MAX_FIELDS:
            raise _Unconstructed(f"more than {MAX_FIELDS} fields", node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag.endswith(":merge"):
                continue
            key = self.construct_object(key_node)
            if key in seen:
                raise _Unconstructed(f"the key {key!r} appears twice", key_node)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        value = super().construct_scalar(node)
        if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
            raise _Unconstructed(f"half a surrogate pair in {value!r}", node)
        return value


class _UnsettingLoader(_Loader):
    """A field that is null is unset, as a Kubernetes API server reads it."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found = super().construct_mapping(node, deep=deep)
        return {key: value for key, value in found.items() if value is not None}


def read_yaml(text: str, *, keeps_nulls: bool = True) -> list[Any]:
    """The documents of a text, without empty ones. Raises InvalidYaml."""
    try:
        loaded = yaml.load_all(text, Loader=_Loader if keeps_nulls else _UnsettingLoader)
        return [document for document in loaded if document is not None]
    except _RAISED as error:
        raise InvalidYaml(f"not valid YAML: {' '.join(str(error).split())}") from error


NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(slots=True)
class DocumentChecks:
    """Checks one document and collects its mistakes in `problems`, each once."""

    kind: str
    place: str
    """Where it was read; empty: where that needs no saying."""
    default_namespace: str
    problems: list[str] = field(default_factory=list)
    title: str = ""

    def add(self, problem: str) -> None:
        place = f"{self.place}: " if self.place else ""
        line = f"{place}{self.title or self.kind}: {problem}"
        if line not in self.problems:
            self.problems.append(line)

    def reject(self, path: str, allowed: str, value: object) -> None:
        self.add(f"{path} {allowed}, was {shown(value)}")

    def mapping(
        self, parent: Mapping[str, Any], key: str, *, path: str = "", required: bool = True
    ) -> dict[str, Any]:
        """A field that must be an object, a filled one if `required`; empty where it is none."""
        value = parent.get(key)
        if isinstance(value, dict) and (value or not required):
            return value
        if required or value is not None:
            self.reject(f"{path}{key}", "must be an object", value)
        return {}

    def known(self, mapping: dict[str, Any], fields: Collection[str], path: str) -> None:
        """Reject fields that do not exist."""
        for key in mapping:
            if key not in fields:
                self.reject(path, f"may have the fields {', '.join(fields)}", key)

    def one_of(self, path: str, value: object, allowed: Sequence[str]) -> None:
        if value not in allowed:
            self.reject(path, f"must be one of {', '.join(allowed)}", value)

    def head(self, document: dict[str, Any], api_version: str) -> ModelName:
        """Name and namespace, which from then on stand in all messages."""
        metadata = self.mapping(document, "metadata", required=False)
        name, namespace = metadata.get("name"), metadata.get("namespace") or self.default_namespace
        self.title = f"{self.kind} {text_of(namespace)}/{text_of(name)}"
        if name is None and metadata.get("generateName"):
            self.add("metadata.generateName is not supported: write metadata.name")
            name = ""
        else:
            self._check_name("name", name, NAME)
            self._check_name("namespace", namespace, _NAMESPACE)
        version = document.get("apiVersion")
        if version != api_version:
            old = version == "serving.kserve.io/v1alpha2" and f"; {_FROM_V1ALPHA2}"
            self.add(f"apiVersion must be {api_version!r}, was {shown(version)}{old or ''}")
        return ModelName(text_of(namespace), text_of(name))

    def _check_name(self, key: str, value: object, rule: re.Pattern[str]) -> None:
        if not isinstance(value, str) or not rule.fullmatch(value):
            start = "starting with a letter, " if rule is NAME else ""
            allowed = "must be at most 63 lower-case letters, digits and '-', "
            self.reject(f"metadata.{key}", f"{allowed}{start}not ending with '-'", value)


class _Named(Protocol):
    @property
    def name(self) -> ModelName: ...


_Spec = TypeVar("_Spec", bound=_Named)


def read_kind(
    kind: str,
    read: Callable[[DocumentChecks, dict[str, Any]], _Spec],
    sources: Sequence[tuple[str, str]],
    *,
    default_namespace: str = "default",
) -> list[_Spec]:
    """The specs of one kind among the documents of `(source name, YAML text)` pairs.

    Documents of other kinds, and text that is not YAML, are left to `reader.read_documents`.

    Raises:
        InvalidModel: lists every mistake of every object; the caller must apply none.
    """
    specs: list[_Spec] = []
    problems: list[str] = []
    for source, text in sources:
        try:
            documents = objects_of(text)
        except InvalidYaml:
            continue
        for document in documents:
            if not is_kind(kind, document):
                continue
            checks = DocumentChecks(kind, source, default_namespace)
            spec = read(checks, document)
            problems += checks.problems
            if any(spec.name == other.name for other in specs):
                problems.append(f"{source}: {kind} {spec.name}: metadata.name is declared twice")
            specs.append(spec)
    if problems:
        raise InvalidModel(problems)
    return specs


def read_parsed(
    kind: str,
    read: Callable[[DocumentChecks, dict[str, Any]], _Spec],
    document: dict[str, Any],
    place: str,
) -> _Spec:
    """The spec of one object that is parsed already. Raises InvalidModel."""
    checks = DocumentChecks(kind, place, "default")
    spec = read(checks, document)
    if checks.problems:
        raise InvalidModel(checks.problems)
    return spec


def is_kind(kind: str, document: object) -> bool:
    return isinstance(document, dict) and document.get("kind") == kind


def text_of(value: object) -> str:
    """For messages, and in place of what should be a text."""
    return value if isinstance(value, str) else shown(value)


LIBRARY_SCHEMES = ("gs", "hdfs", "hf", "http", "https", "modelscope", "oci", "webhdfs")
"""Schemes of which a library downloads the whole model; see `runtime.storage.storages`."""
STORAGE_SCHEMES = ("s3", "file", "pvc", *LIBRARY_SCHEMES)
_SCHEMES = f"begin with one of {', '.join(f'{scheme}://' for scheme in STORAGE_SCHEMES)}"


SECRET_BUCKET: Final = "BUCKET-OF-SECRET"
"""In place of a bucket that only the key of the model's Secret names; no bucket has capitals."""
_SIGNED: Final = re.compile("(?i)(^|&)(sig|signature|[^&=]*token|x-[a-z]+-signature)=")


def storage_uri_rule(uri: object) -> str | None:
    """The rule that a URI of a model breaks, as what follows "must"; None if it is valid."""
    if not isinstance(uri, str):
        return _SCHEMES
    try:
        parts = urlsplit(uri)
    except ValueError:
        return f"be a URI, and {_SCHEMES}"
    if parts.scheme not in STORAGE_SCHEMES:
        return _SCHEMES
    if parts.fragment or (parts.query and parts.scheme not in ("http", "https")):
        return "have no query and no fragment (? and #)"
    if _SIGNED.search(parts.query):
        return "have no signature in its query (credentials belong in a Secret of the namespace)"
    path = unquote(parts.path)
    # urlsplit drops line ends and tabs; others read \\ as /
    if "\\" in uri or not (uri.isprintable() and path.isprintable()):
        return "have no backslash and no character that cannot be printed"
    if any(segment in ("..", ".") for segment in path.split("/")):
        return "have no . or .. in its path"
    if "@" in parts.netloc:
        return "have no credentials (they belong in a Secret, or the environment of the pods)"
    return _place_rule(parts.scheme, parts.netloc, parts.path)


def _place_rule(scheme: str, place: str, path: str) -> str | None:
    match scheme:
        case "file" if place or not path.startswith("/"):
            return "be an absolute path with three slashes, as file:///models/mine"
        case "s3" if not 3 <= len(place) <= 63:
            return "name a bucket of 3 to 63 characters, as s3://models/mine"
        case "hf" if not place or path.count("/") != 1 or path == "/":
            return "be hf://ORGANISATION/NAME"
        case _ if scheme not in ("file", "s3", "hf") and place in ("", ".", ".."):
            return f"name a host, bucket or claim after {scheme}://"
    return None
