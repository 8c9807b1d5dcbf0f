"""Reads InferenceService and Model YAML into model specifications.

All mistakes of all objects are reported together: file, object, field, value, what is allowed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from common.shown_value import shown
from registry.domain.application import KIND as APPLICATION
from registry.domain.model import STOPPED, EngineChoice, ModelName, ModelSpec, Precision, Task
from registry.errors import InvalidModel, InvalidYaml
from registry.inference_service.annotations import ParsedAnnotations, parse_annotations
from registry.inference_service.components import component_problems
from registry.inference_service.documents import (
    DocumentChecks,
    is_kind,
    is_left,
    kind_problem,
    objects_of,
    storage_uri_rule,
    text_of,
    title_of,
)
from registry.inference_service.fields import STOP, review
from registry.inference_service.graph_reader import is_graph
from registry.inference_service.model_resource import API_VERSION as MODEL_API
from registry.inference_service.model_resource import as_service, is_model, name_fields
from registry.inference_service.predictors import (
    CUSTOM_FORMAT,
    MODEL_FORMATS,
    Predictor,
    join_needs,
    read_predictor,
)
from registry.inference_service.rollouts import canary_objects
from registry.inference_service.server_arguments import ENGINE_FLAGS, ENGINE_VALUES, format_name

API_VERSION = "serving.kserve.io/v1beta1"
KIND = "InferenceService"
PROTOCOLS = {"v1": "v1", "v2": "v2", "grpc-v1": "v1", "grpc-v2": "v2", "": "v2"}
"""KServe's, and what they mean here, where every model is served over HTTP and V2 over gRPC."""
_OBJECT = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
"""Names of service accounts and Secrets."""
_MAX_WARNINGS = 64
_SECRET_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_STORAGE_SECRET = "serving.kserve.io/storageSecretName"


def read_documents(
    sources: Sequence[tuple[str, str]], *, default_namespace: str = "default"
) -> list[ModelSpec]:
    """Model specifications of all documents in `(source name, YAML text)` pairs.

    Applications are left to `variants.application`, graphs to
    `graph_reader.read_graphs`; for kinds that are passed over see `manifests.left_objects`.

    Raises:
        InvalidModel: lists every mistake of every document; the caller must apply no document.
    """
    specs: list[ModelSpec] = []
    problems: list[str] = []
    declared: dict[ModelName, str] = {}
    for source, text in sources:
        try:
            documents = objects_of(text)
        except InvalidYaml as error:
            problems.append(f"{source}: {error}")
            continue
        if not documents:
            problems.append(f"{source}: holds no object; expected kind {KIND}")
        for index, document in enumerate(documents, start=1):
            if is_kind(APPLICATION, document) or is_graph(document) or is_left(document):
                continue
            place = source if len(documents) == 1 else f"{source} (document {index})"
            checks = DocumentChecks(KIND, place, default_namespace)
            spec = _Reader(checks).read(document)
            problems += checks.problems
            if spec is None:
                continue
            if spec.name in declared:
                problems.append(
                    f"{place}: {checks.kind} {spec.name}: metadata.name is declared twice, "
                    f"also in {declared[spec.name]}"
                )
            declared.setdefault(spec.name, place)
            specs.append(spec)
    if problems:
        raise InvalidModel(problems)
    return specs


def read_object(document: object) -> ModelSpec:
    """One InferenceService, or Model, as a Kubernetes API server holds it.

    Raises:
        InvalidModel: lists every mistake, with the messages of `read_documents`.
    """
    checks = DocumentChecks(KIND, "", "default")
    spec = _Reader(checks).read(document)
    if spec is None:
        raise InvalidModel(checks.problems)
    return spec


def _is_object_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= 253 and _OBJECT.fullmatch(value) is not None


@dataclass(slots=True)
class _Reader:
    """Reads one document; its mistakes are kept by `checks`."""

    checks: DocumentChecks
    model_path: str = "spec.predictor.model"
    """Where the model object is, for messages."""

    def read(self, document: object) -> ModelSpec | None:
        checks = self.checks
        if not isinstance(document, dict):
            problem = f"must be an object of kind {KIND}, was {shown(document)}"
            checks.problems.append(f"{checks.place}: {problem}" if checks.place else problem)
            return None
        if problem := kind_problem(document):
            checks.title = title_of(document, checks.default_namespace)
            checks.add(problem)
            return None
        if is_model(document):
            return self._read_model(document)
        return self._read_service(document, API_VERSION)

    def _read_model(self, document: dict[str, Any]) -> ModelSpec | None:
        checks = self.checks
        checks.kind = str(document["kind"])
        checks.title = title_of(document, checks.default_namespace)
        service, problems = as_service(document)
        for problem in problems:
            checks.add(problem)
        spec = self._read_service(service, MODEL_API)
        checks.problems[:] = map(name_fields, checks.problems)
        return spec

    def _read_service(self, document: dict[str, Any], api_version: str) -> ModelSpec | None:
        checks = self.checks
        name = checks.head(document, api_version)
        metadata = checks.mapping(document, "metadata", required=False)
        predictor = self._predictor(document)
        model, arguments = predictor.model, predictor.arguments
        annotations = self._strings(metadata, "annotations")
        is_stopped = annotations.get(STOP, "").lower() == "true"
        parsed = parse_annotations(annotations, predictor.policy)
        for problem in parsed.problems:
            checks.add(problem)
        for key, other in (("canary-of", parsed.policy.canary_of), ("base-model", parsed.base)):
            if other and other == name.name:
                checks.add(
                    f"metadata.annotations[pilotlight.io/{key}] must name another model, "
                    f"was {name.name!r} itself"
                )
        declared = document.get("spec")
        if isinstance(declared, dict):
            for problem in component_problems(declared, name, parsed.policy):
                checks.add(problem)
        labels = self._strings(metadata, "labels")
        spec = ModelSpec(
            name=name,
            storage_uri=self._storage_uri(model),
            credentials=self._credentials(document, model),
            needs=join_needs(STOPPED if is_stopped else "", predictor.needs),
            logger=predictor.logger,
            format=self._format(model) or CUSTOM_FORMAT,
            task=self._task(predictor, parsed),
            protocol=self._protocol(model),
            rollout_percent=self._rollout(predictor, parsed),
            pool=parsed.pool,
            precision=self._precision(predictor, parsed),
            base=parsed.base,
            engine=self._engine(predictor, parsed),
            engine_args=self._engine_args(predictor, parsed),
            policy=parsed.policy,
            annotations=tuple(sorted(annotations.items())),
            labels=tuple(sorted(labels.items())),
            options=replace(  # no annotation says otherwise
                arguments.options,
                answers=parsed.answers or arguments.options.answers,
                scores=parsed.scores or arguments.options.scores,
            ),
            served_name="" if arguments.model_name == name.name else arguments.model_name,
            warnings=(*self._review(document), *predictor.warnings)[:_MAX_WARNINGS],
        )
        return None if checks.problems else spec

    def _review(self, document: Mapping[str, Any]) -> list[str]:
        """Warnings of fields without effect; those that are refused are mistakes."""
        found = list(review(document, KIND))
        for each in found:
            if each.is_refused:
                is_canary = each.line.startswith("spec.canary ")
                self.checks.add(each.line + (f": {canary_objects(document)}" if is_canary else ""))
        return [each.line for each in found if not each.is_refused]

    def _strings(self, metadata: Mapping[str, Any], key: str) -> dict[str, str]:
        result: dict[str, str] = {}
        for name, value in self.checks.mapping(
            metadata, key, path="metadata.", required=False
        ).items():
            if isinstance(name, str) and isinstance(value, str):
                result[name] = value
            else:
                self.checks.add(
                    f"metadata.{key}[{text_of(name)}] must be a string (put it in quotes), "
                    f"was {shown(value)}"
                )
        return result

    def _predictor(self, document: Mapping[str, Any]) -> Predictor:
        spec = self.checks.mapping(document, "spec")
        if not spec:
            return Predictor()
        predictor = self.checks.mapping(spec, "predictor", path="spec.")
        found = read_predictor(spec, predictor) if predictor else Predictor()
        self.model_path = found.path
        for problem in found.problems:
            self.checks.add(problem)
        return found

    def _rollout(self, predictor: Predictor, parsed: ParsedAnnotations) -> int | None:
        policy = parsed.policy
        if predictor.rollout_percent is not None and (policy.canary_of or policy.application):
            self.checks.add(
                "spec.predictor.canaryTrafficPercent must be absent beside pilotlight.io/canary-of"
                " and pilotlight.io/application"
            )
        return predictor.rollout_percent

    def _precision(self, predictor: Predictor, parsed: ParsedAnnotations) -> Precision | None:
        by_argument = None if parsed.base else predictor.arguments.precision
        self._contradiction("dtype", parsed.precision, by_argument)
        return parsed.precision or by_argument

    def _contradiction(
        self, key: str, annotated: str | None, argued: str | None, argument: str = ""
    ) -> None:
        if annotated is not None and argued is not None and annotated != argued:
            self.checks.add(
                f"metadata.annotations[pilotlight.io/{key}] is {annotated}, but"
                f" {self.model_path}.args --{argument or key} asks for {argued}: give one of them"
            )

    def _engine(self, predictor: Predictor, parsed: ParsedAnnotations) -> EngineChoice:
        annotated = None if parsed.engine is EngineChoice.AUTO else parsed.engine
        self._contradiction("engine", annotated, predictor.arguments.backend, "backend")
        return predictor.arguments.backend or parsed.engine

    def _engine_args(self, predictor: Predictor, parsed: ParsedAnnotations) -> tuple[str, ...]:
        """Arguments of vLLM; where it is asked for, others are mistakes."""
        arguments = predictor.arguments
        allowed = ", ".join(sorted(f"--{each}" for each in ENGINE_FLAGS | ENGINE_VALUES))
        if EngineChoice.VLLM in (parsed.engine, arguments.backend):
            for written in dict.fromkeys(arguments.ignored):
                self.checks.add(
                    f"{self.model_path}.args {written} is none that vLLM takes here: leave it out;"
                    f" allowed are {allowed.replace('_', '-')}"
                )
        return tuple(arguments.engine)

    def _task(self, predictor: Predictor, parsed: ParsedAnnotations) -> Task | None:
        by_argument = predictor.arguments.task
        self._contradiction("task", parsed.task, by_argument)
        if declared := parsed.task or by_argument:
            return declared
        is_sklearn = format_name(predictor.model) == "sklearn"
        wanted = predictor.wants_probabilities and is_sklearn
        return Task.TABULAR_CLASSIFICATION if wanted else None

    def _format(self, model: Mapping[str, Any]) -> str:
        if not model:
            return ""
        model_format = self.checks.mapping(model, "modelFormat", path=f"{self.model_path}.")
        name = model_format.get("name")
        if model_format:
            self.checks.one_of(f"{self.model_path}.modelFormat.name", name, MODEL_FORMATS)
        return text_of(name)

    def _protocol(self, model: Mapping[str, Any]) -> str:
        protocol = model.get("protocolVersion", "v2")
        if isinstance(protocol, str) and protocol in PROTOCOLS:
            return PROTOCOLS[protocol]
        self.checks.one_of(
            f"{self.model_path}.protocolVersion", protocol, [*filter(None, PROTOCOLS)]
        )
        return text_of(protocol)

    def _storage_uri(self, model: Mapping[str, Any]) -> str:
        uri = model.get("storageUri")
        if uri in (None, ""):
            return ""
        for form in ("oci+native://", "oci+fetch://"):  # how KServe's pods get the image's files
            uri = f"oci://{uri.removeprefix(form)}" if str(uri).startswith(form) else uri
        storage = self.checks.mapping(model, "storage", path=f"{self.model_path}.", required=False)
        for key in ("path", "parameters"):
            if storage.get(key):
                self.checks.add(
                    f"{self.model_path}.storage.{key} must be absent beside"
                    f" {self.model_path}.storageUri: give one of them"
                )
        if (rule := storage_uri_rule(uri)) is not None:
            self.checks.add(f"{self.model_path}.storageUri must {rule}, was {shown(uri)}")
        return text_of(uri)

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
                self.checks.add(f"{path} must be the name of an object, was {shown(name)}")
        if key is not None:
            if not isinstance(key, str) or not _SECRET_KEY.fullmatch(key):
                self.checks.add(
                    f"{self.model_path}.storage.key must be a key of a Secret, was {shown(key)}"
                )
            return f"storage-config/{secret or 'storage-config'}/{key}"
        if secret:
            return f"secret/{secret}"
        return f"serviceaccount/{account}" if account else ""
