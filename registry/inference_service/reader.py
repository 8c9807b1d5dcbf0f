"""Reads InferenceService YAML, as for KServe, into model specifications.

All mistakes of all objects are reported together: file, object, field, value, what is allowed.
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from registry.domain.model import ModelName, ModelSpec
from registry.errors import InvalidModel, InvalidYaml
from registry.inference_service.annotations import parse_annotations
from registry.inference_service.application_reader import is_application
from registry.inference_service.graph_reader import is_graph
from registry.inference_service.storage_uri import STORAGE_SCHEMES, is_storage_uri
from registry.inference_service.strict_yaml import read_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

API_VERSION = "serving.kserve.io/v1beta1"
KIND = "InferenceService"
MODEL_FORMATS = (
    "huggingface",
    "safetensors",
    "pytorch",
    "onnx",
    "xgboost",
    "lightgbm",
    "sklearn",
)
PROTOCOLS = ("v1", "v2")
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
"""KServe's own rule for the name of an InferenceService."""
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_OBJECT = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
"""Names of service accounts and Secrets."""
_SECRET_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_STORAGE_SECRET = "serving.kserve.io/storageSecretName"
_MODEL = "spec.predictor.model"
_OTHER_PREDICTORS = (
    "sklearn", "xgboost", "tensorflow", "pytorch", "triton", "onnx", "huggingface", "pmml",
    "lightgbm", "paddle",
)  # fmt: skip
_CANARY_FIELDS = frozenset(("canary", "canaryTrafficPercent"))
_CANARY_HINT = (
    "declare the new version as a model of its own, with the annotations pilotlight.io/canary-of "
    "and pilotlight.io/canary-percent"
)


def read_documents(
    sources: Sequence[tuple[str, str]], *, default_namespace: str = "default"
) -> list[ModelSpec]:
    """Model specifications of all documents in `(source name, YAML text)` pairs.

    Applications are left to `application_reader.read_applications`, graphs to
    `graph_reader.read_graphs`.

    Raises:
        InvalidModel: lists every mistake of every document; the caller must apply no document.
    """
    specs: list[ModelSpec] = []
    problems: list[str] = []
    declared: dict[ModelName, str] = {}
    for source, text in sources:
        try:
            documents = read_yaml(text)
        except InvalidYaml as error:
            problems.append(f"{source}: {error}")
            continue
        if not documents:
            problems.append(f"{source}: holds no object; expected kind {KIND}")
        for index, document in enumerate(documents, start=1):
            if is_application(document) or is_graph(document):
                continue
            place = source if len(documents) == 1 else f"{source} (document {index})"
            reader = _Reader(place, default_namespace)
            spec = reader.read(document)
            problems += reader.problems
            if spec is None:
                continue
            if spec.name in declared:
                problems.append(
                    f"{place}: {KIND} {spec.name}: metadata.name is declared twice, "
                    f"also in {declared[spec.name]}"
                )
            declared.setdefault(spec.name, place)
            specs.append(spec)
    if problems:
        raise InvalidModel(problems)
    return specs


def read_object(document: object) -> ModelSpec:
    """One InferenceService as a Kubernetes API server holds it.

    Raises:
        InvalidModel: lists every mistake, with the messages of `read_documents`.
    """
    reader = _Reader("", "default")
    spec = reader.read(document)
    if spec is None:
        raise InvalidModel(reader.problems)
    return spec


def _is_object_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= 253 and _OBJECT.fullmatch(value) is not None


def _shorten(value: object) -> str:
    """A value for a message, bounded: a few nested YAML aliases can expand to gigabytes."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 200
    short.maxlevel = 2
    return short.repr(value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else _shorten(value)


@dataclass(slots=True)
class _Reader:
    """Reads one document and collects its mistakes in `problems`."""

    place: str
    default_namespace: str
    problems: list[str] = field(default_factory=list)
    title: str = KIND

    def read(self, document: object) -> ModelSpec | None:
        if not isinstance(document, dict):
            kind = type(document).__name__
            self._add_problem(f"must be an object of kind {KIND}, was a {kind}")
            return None
        metadata = self._mapping(document, "metadata", required=True)
        name = self._name(metadata)
        self.title = f"{KIND} {name}"
        self._literal(document, "apiVersion", API_VERSION)
        if not self._literal(document, "kind", KIND):
            return None
        parsed = parse_annotations(self._strings(metadata, "annotations"))
        for problem in parsed.problems:
            self._reject(problem)
        if parsed.policy.canary_of == name.name:
            self._reject(
                "metadata.annotations[pilotlight.io/canary-of] must name another model, "
                f"was {name.name!r} itself"
            )
        labels = self._strings(metadata, "labels")
        model = self._model(document)
        spec = ModelSpec(
            name=name,
            storage_uri=self._storage_uri(model),
            credentials=self._credentials(document, model),
            format=self._format(model),
            task=parsed.task,
            protocol=self._protocol(model),
            pool=parsed.pool,
            policy=parsed.policy,
            annotations=tuple(sorted(self._strings(metadata, "annotations").items())),
            labels=tuple(sorted(labels.items())),
        )
        return None if self.problems else spec

    def _reject(self, problem: str) -> None:
        self._add_problem(f"{self.title}: {problem}")

    def _add_problem(self, problem: str) -> None:
        line = f"{self.place}: {problem}" if self.place else problem
        if line not in self.problems:
            self.problems.append(line)

    def _literal(self, document: Mapping[str, Any], key: str, expected: str) -> bool:
        value = document.get(key)
        if value != expected:
            self._reject(f"{key} must be {expected!r}, was {_shorten(value)}")
        return value == expected

    def _mapping(
        self, parent: Mapping[str, Any], key: str, *, path: str = "", required: bool = False
    ) -> dict[str, Any]:
        value = parent.get(key)
        if value is None and not required:
            return {}
        if not isinstance(value, dict) or (required and not value):
            self._reject(f"{path}{key} must be an object, was {_shorten(value)}")
            return {}
        return value

    def _strings(self, metadata: Mapping[str, Any], key: str) -> dict[str, str]:
        result: dict[str, str] = {}
        for name, value in self._mapping(metadata, key, path="metadata.").items():
            if isinstance(name, str) and isinstance(value, str):
                result[name] = value
            else:
                self._reject(
                    f"metadata.{key}[{_text(name)}] must be a string (put it in quotes), "
                    f"was {_shorten(value)}"
                )
        return result

    def _name(self, metadata: Mapping[str, Any]) -> ModelName:
        name = metadata.get("name")
        namespace = metadata.get("namespace", self.default_namespace)
        self.title = f"{KIND} {_text(namespace)}/{_text(name)}"
        for key, value, rule in (("name", name, _NAME), ("namespace", namespace, _NAMESPACE)):
            if not isinstance(value, str) or len(value) > 63 or not rule.fullmatch(value):
                start = "starting with a letter, " if key == "name" else ""
                self._reject(
                    f"metadata.{key} must be at most 63 lower-case letters, digits and '-', "
                    f"{start}not ending with '-', was {_shorten(value)}"
                )
        return ModelName(_text(namespace), _text(name))

    def _model(self, document: Mapping[str, Any]) -> dict[str, Any]:
        spec = self._mapping(document, "spec", required=True)
        for part in ("transformer", "explainer"):
            if part in spec:
                self._reject(
                    f"spec.{part} is not supported: a model is served by its pool's runtime"
                )
        if not spec:
            return {}
        predictor = self._mapping(spec, "predictor", path="spec.", required=True)
        for path, mapping in (("spec.", spec), ("spec.predictor.", predictor)):
            for key in sorted(_CANARY_FIELDS & mapping.keys()):
                self._reject(f"{path}{key} is not supported; {_CANARY_HINT}")
        legacy = [kind for kind in _OTHER_PREDICTORS if kind in predictor]
        if legacy and "model" not in predictor:
            self._reject(
                f"spec.predictor.{legacy[0]} is not supported; write spec.predictor.model with "
                f"modelFormat.name one of {', '.join(MODEL_FORMATS)}"
            )
            return {}
        return self._mapping(predictor, "model", path="spec.predictor.", required=bool(predictor))

    def _format(self, model: Mapping[str, Any]) -> str:
        if not model:
            return ""
        model_format = self._mapping(model, "modelFormat", path=f"{_MODEL}.", required=True)
        name = model_format.get("name")
        if model_format:
            self._one_of(f"{_MODEL}.modelFormat.name", name, MODEL_FORMATS)
        return _text(name)

    def _protocol(self, model: Mapping[str, Any]) -> str:
        protocol = model.get("protocolVersion", "v2")
        self._one_of(f"{_MODEL}.protocolVersion", protocol, PROTOCOLS)
        return _text(protocol)

    def _one_of(self, path: str, value: object, allowed: Sequence[str]) -> None:
        if value not in allowed:
            self._reject(f"{path} must be one of {', '.join(allowed)}, was {_shorten(value)}")

    def _storage_uri(self, model: Mapping[str, Any]) -> str:
        if not model:
            return ""
        uri = model.get("storageUri")
        if model.get("storageUris") is not None:
            self._reject(f"{_MODEL}.storageUris is not supported; write {_MODEL}.storageUri")
        storage = self._mapping(model, "storage", path=f"{_MODEL}.")
        for key in sorted(storage.keys() - {"key"}):
            self._reject(
                f"{_MODEL}.storage.{key} is not supported; write {_MODEL}.storageUri beside "
                f"{_MODEL}.storage.key"
            )
        if not isinstance(uri, str) or not is_storage_uri(uri):
            allowed = ", ".join(f"{scheme}://" for scheme in STORAGE_SCHEMES)
            self._reject(
                f"{_MODEL}.storageUri must be a plain URI that begins with one of {allowed}, "
                f"was {_shorten(uri)}"
            )
        return _text(uri)

    def _credentials(self, document: Mapping[str, Any], model: Mapping[str, Any]) -> str:
        """By KServe's order: key of `storage-config`, annotated Secret, service account."""
        metadata, spec = document.get("metadata"), document.get("spec")
        predictor = spec.get("predictor") if isinstance(spec, dict) else None
        annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
        account = predictor.get("serviceAccountName") if isinstance(predictor, dict) else None
        secret = annotations.get(_STORAGE_SECRET) if isinstance(annotations, dict) else None
        storage = model.get("storage")
        key = storage.get("key") if isinstance(storage, dict) else None
        for path, name in (
            ("spec.predictor.serviceAccountName", account),
            (f"metadata.annotations[{_STORAGE_SECRET}]", secret),
        ):
            if name is not None and name != "" and not _is_object_name(name):
                self._reject(f"{path} must be the name of an object, was {_shorten(name)}")
        if key is not None:
            if not isinstance(key, str) or not _SECRET_KEY.fullmatch(key):
                self._reject(f"{_MODEL}.storage.key must be a key of a Secret, was {_shorten(key)}")
            return f"storage-config/{secret or 'storage-config'}/{key}"
        if secret:
            return f"secret/{secret}"
        return f"serviceaccount/{account}" if account else ""
