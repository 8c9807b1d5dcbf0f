"""The objects of YAML files, and which kinds are declared here, passed over or refused.

A file of KServe's users holds more than models: their Secrets, accounts and namespaces, and Lists
as `kubectl get -o yaml` writes them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from common.shown_value import shown
from registry.errors import InvalidYaml

DECLARED_KINDS: Final = ("InferenceService", "InferenceApplication", "InferenceGraph")
_CREDENTIALS: Final = (
    "on one machine `pilotlight up` reads storage credentials from its environment, such as "
    "AWS_ACCESS_KEY_ID; on a cluster apply it with kubectl"
)
_CLUSTER_ONLY: Final = "only a cluster has it: apply it with kubectl"
_VOLUME: Final = "on one machine a model's storageUri is a file:// folder in place of pvc://"
_RUNTIME: Final = "pods of a pool have their own engines, and a model's files choose among them"
_CACHE: Final = "every node caches models by itself, in its pods' cache folder"
LEFT_KINDS: Final[Mapping[str, str]] = {
    "Secret": _CREDENTIALS,
    "ServiceAccount": _CREDENTIALS,
    "ConfigMap": _CLUSTER_ONLY,
    "Namespace": "a namespace exists here as soon as a model names it",
    "PersistentVolume": _VOLUME,
    "PersistentVolumeClaim": _VOLUME,
    **dict.fromkeys(
        (
            "ClusterRole",
            "ClusterRoleBinding",
            "LimitRange",
            "NetworkPolicy",
            "ResourceQuota",
            "Role",
            "RoleBinding",
        ),
        _CLUSTER_ONLY,
    ),
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
_REFUSED_KINDS: Final[Mapping[str, str]] = {
    "TrainedModel": (
        "a pool serves many models without it: declare an InferenceService with the storageUri of "
        "its spec.model"
    ),
    "LLMInferenceService": (
        "declare an InferenceService with modelFormat huggingface and, as storageUri, the uri of "
        "its spec.model"
    ),
    "Predictor": "`pilotlight import modelmesh` makes an InferenceService of it",
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
    yaml.YAMLError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    TypeError,
    RecursionError,
)
"""What PyYAML raises at invalid input: its tags for times, numbers and booleans check little."""


MAX_DEPTH: Final = 64
"""Of brackets and braces: PyYAML's time grows with its square."""
MAX_FIELDS: Final = 10_000
"""Of one mapping: merge keys of merge keys would multiply."""


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
            raise yaml.constructor.ConstructorError(
                None, None, f"more than {MAX_FIELDS} fields", node.start_mark
            )

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag.endswith(":merge"):
                continue
            key = self.construct_object(key_node)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} appears twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        value = super().construct_scalar(node)
        if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
            raise yaml.constructor.ConstructorError(
                None, None, f"half a surrogate pair in {value!r}", node.start_mark
            )
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
