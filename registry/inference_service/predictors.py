"""What `spec.predictor` of KServe's InferenceServices means here, in the forms KServe accepts.

`spec.predictor.sklearn` and the like are the older form of `spec.predictor.model`, as KServe's
defaulter reads it. A field is honoured, translated to a policy, left to the pool's pods, or refused
by name; a model that needs what a pool has not is accepted, and says so instead of loading.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from common.shown_value import shown
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelSpec, RequestLog
from registry.inference_service.components import machine_needs, read_logger
from registry.inference_service.server_arguments import ServerArguments, read_arguments

SERVED_FORMATS: Final = (
    "huggingface", "safetensors", "pytorch", "onnx", "xgboost", "lightgbm", "sklearn", "triton",
)  # fmt: skip
"""Formats whose files a pod may read; the files decide (docs/compatibility.md)."""
UNSERVED_FORMATS: Final[Mapping[str, str]] = {
    "tensorflow": "convert the model to ONNX with tf2onnx",
    "paddle": "convert the model to ONNX with paddle2onnx",
    "pmml": "export the model to ONNX from the library that trained it",
    "catboost": "save the model with format='onnx'",
}
"""Formats without an engine here, and the way out."""
SERVER_FORMATS: Final = (
    "mlflow", "tensorrt", "keras", "openvino_ir", "pytorch-mar", "python", "alibi-detect",
    "alibi-explain",
)  # fmt: skip
"""Further formats that a model server may read: V2 has no call that asks for them."""
CUSTOM_FORMAT: Final = "custom"
"""Of a predictor that is a container of its own."""
MODEL_FORMATS: Final = (*SERVED_FORMATS, *UNSERVED_FORMATS, *SERVER_FORMATS)
LEGACY_KINDS: Final = (
    "sklearn", "xgboost", "tensorflow", "pytorch", "triton", "onnx", "huggingface", "pmml",
    "lightgbm", "paddle", "catboost",
)  # fmt: skip
POD_FIELDS: Final = frozenset({
    "affinity", "annotations", "args", "command", "deploymentStrategy", "env", "envFrom", "image",
    "imagePullSecrets", "labels", "lifecycle", "livenessProbe", "name", "nodeSelector", "ports",
    "readinessProbe", "resources", "runtime", "runtimeVersion", "serviceAccount",
    "serviceAccountName", "startupProbe", "tolerations", "topologySpreadConstraints", "volumes",
    "volumeMounts", "nodeName", "priorityClassName", "hostIPC", "runtimeClassName",
    "schedulerName", "securityContext", "terminationGracePeriodSeconds", "workingDir",
    "imagePullPolicy", "automountServiceAccountToken",
})  # fmt: skip
"""Of pods and containers: a model shares the pods of its pool, which have their own."""
_HONOURED: Final = frozenset({"serviceAccountName", "automountServiceAccountToken", "name"})
"""Of these: the account's storage credentials are read, the others mean nothing here."""
_REFUSED: Final[Mapping[str, str]] = {
    "workerSpec": "a model is served by one pod: take a smaller or quantised model",
    "autoScaling": "pods follow the load of all models of the pool: see docs/autoscaler.md",
    "scaleMetric": "write the annotation pilotlight.io/target-ongoing-requests",
    "scaleMetricType": "write the annotation pilotlight.io/target-ongoing-requests",
    "storageUris": "a model is one folder: write storageUri of its model",
}
_ASKS_NOTHING: Final[Mapping[str, object]] = {
    "scaleMetric": "concurrency",  # as scaleTarget counts here
    "scaleMetricType": "AverageValue",
}
_MAX_COUNT: Final = 10_000
_MAX_SECONDS: Final = 30 * 86400
_BUCKET_SCHEMES: Final = {"s3": "s3", "gs": "gs", "gcs": "gs"}


@dataclass(slots=True)
class Predictor:
    """A predictor as read: its model object, and what its other fields mean."""

    model: dict[str, Any] = field(default_factory=dict)
    path: str = "spec.predictor.model"
    """Where the model object is, for messages."""
    policy: dict[str, Any] = field(default_factory=dict)
    """Fields of `ModelPolicy`, which annotations override."""
    logger: RequestLog | None = None
    wants_probabilities: bool = False
    """Of scikit-learn: KServe's server reads it from the environment variable PREDICT_PROBA."""
    arguments: ServerArguments = field(default_factory=ServerArguments)
    needs: str = ""
    """What is missing for it to be served; empty: nothing."""
    problems: list[str] = field(default_factory=list)


def read_predictor(spec: Mapping[str, Any], predictor: Mapping[str, Any]) -> Predictor:
    """Read `spec.predictor`; mistakes are in `problems`, each a line about one field."""
    found = Predictor()
    kinds = [kind for kind in LEGACY_KINDS if predictor.get(kind) is not None]
    if predictor.get("model") is None and not kinds:
        _read_without_model(found, predictor)
        return found
    if kinds and (predictor.get("model") is not None or len(kinds) > 1):
        others = ", ".join(kinds)
        found.problems.append(f"spec.predictor must have one of model, {others}; it has several")
        return found
    _read_model(found, predictor, kinds[0] if kinds else "model")
    _read_policy(found, predictor)
    found.logger = read_logger(predictor.get("logger"), found.problems)
    _reject_unsupported(found, predictor)
    found.needs = _needs(found, spec, predictor)
    return found


def ignored_fields(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields and arguments of `spec.predictor`, by path, that mean nothing here.

    The pool's pods have their own.
    """
    predictor = spec.get("predictor")
    if not isinstance(predictor, dict):
        return ()
    parts = {"spec.predictor": predictor}
    arguments: list[str] = []
    for kind in ("model", *LEGACY_KINDS):
        if isinstance(predictor.get(kind), dict):
            path, part = f"spec.predictor.{kind}", predictor[kind]
            parts[path] = {key: value for key, value in part.items() if key != "args"}
            model = part if kind == "model" else {**part, "modelFormat": {"name": kind}}
            ignored = dict.fromkeys(read_arguments(model, path).ignored)
            arguments += [f"{path}.args {each}" for each in ignored]
    fields = [
        f"{path}.{key}"
        for path, part in parts.items()
        for key in sorted(part.keys() & POD_FIELDS - _HONOURED)
        if part[key] and not (key == "env" and _only_probabilities(part[key]))
    ]
    return (*fields, *arguments)


def _only_probabilities(environment: object) -> bool:
    return isinstance(environment, list) and all(
        isinstance(each, dict) and each.get("name") == "PREDICT_PROBA" for each in environment
    )


def _read_without_model(found: Predictor, predictor: Mapping[str, Any]) -> None:
    if not predictor.get("containers"):
        found.problems.append(
            f"spec.predictor must have model, or one of {', '.join(LEGACY_KINDS)};"
            f" it has {shown(list(predictor))}"
        )
        return
    _read_policy(found, predictor)
    found.logger = read_logger(predictor.get("logger"), found.problems)
    _reject_unsupported(found, predictor)
    found.needs = (
        "spec.predictor.containers is a server of your own, which a pool cannot run: KServe alone"
        " serves it, in a cluster, without the annotations of a pool"
    )


def _read_model(found: Predictor, predictor: Mapping[str, Any], kind: str) -> None:
    model = predictor[kind]
    found.path = f"spec.predictor.{kind}"
    if not isinstance(model, dict) or not model:
        found.problems.append(f"{found.path} must be an object, was {shown(model)}")
        return
    found.model = dict(model)
    if kind != "model":
        found.model["modelFormat"] = {"name": kind}
        found.model.setdefault("protocolVersion", "v2" if kind == "triton" else "v1")
    environment = model.get("env")
    for each in environment if isinstance(environment, list) else ():
        if isinstance(each, dict) and each.get("name") == "PREDICT_PROBA":
            value = each.get("value")
            found.wants_probabilities = value is True or (
                isinstance(value, str) and value.lower() == "true"
            )
    confidential = model.get("confidential")
    if isinstance(confidential, dict) and confidential.get("enabled"):
        found.problems.append(
            f"{found.path}.confidential is not supported: models are read without attestation; "
            "leave it out, or set enabled: false"
        )
    found.arguments = read_arguments(found.model, found.path)
    found.problems += found.arguments.problems
    storage = model.get("storage")
    if by_id := found.arguments.storage_uri:
        _read_model_id(found, by_id)
    elif "storageUri" not in model and isinstance(storage, dict) and "path" in storage:
        found.model["storageUri"] = _uri_of_storage(found, storage)
        found.model["storage"] = {
            key: storage[key] for key in storage if key not in ("path", "parameters")
        }


def _read_model_id(found: Predictor, uri: str) -> None:
    """The model of the Hub that `--model_id` names, which KServe's server reads in any case."""
    given = found.model.get("storageUri")
    if given and given != uri:
        found.problems.append(
            f"{found.path} has storageUri {shown(given)} and the argument --model_id for {uri},"
            " which KServe's server reads: give one of them"
        )
    found.model["storageUri"] = uri


def _uri_of_storage(found: Predictor, storage: Mapping[str, Any]) -> str:
    """The URI of `storage.path` in `storage.parameters.bucket`."""
    parameters = storage.get("parameters")
    values = parameters if isinstance(parameters, dict) else {}
    kind, bucket, path = values.get("type", "s3"), values.get("bucket"), storage["path"]
    where = f"{found.path}.storage"
    if not isinstance(kind, str) or kind not in _BUCKET_SCHEMES:
        found.problems.append(
            f"{where}.parameters.type must be s3 or gs, was {shown(kind)}; write"
            f" {found.path}.storageUri"
        )
    elif not isinstance(bucket, str) or not bucket or not isinstance(path, str):
        found.problems.append(
            f"{where} must have the bucket's name in parameters.bucket and a text as path; or write"
            f" {found.path}.storageUri"
        )
    else:
        return f"{_BUCKET_SCHEMES[kind]}://{bucket}/{path.lstrip('/')}"
    return "s3://unknown/"  # the problem above is reported alone


def _read_policy(found: Predictor, predictor: Mapping[str, Any]) -> None:
    """Counts, times and batches as KServe's fields give them."""
    for key, name, low in (
        ("minReplicas", "min_copies", 0),
        ("maxReplicas", "max_copies", 0),
        ("containerConcurrency", "target_ongoing_requests", 0),
        ("scaleTarget", "target_ongoing_requests", 1),
    ):
        value = _number(found, predictor, key, low=low, high=_MAX_COUNT)
        if value or (value == 0 and key == "minReplicas"):  # elsewhere 0 is KServe's "no limit"
            found.policy[name] = value
    low_copies, high_copies = found.policy.get("min_copies"), found.policy.get("max_copies")
    if low_copies and high_copies and low_copies > high_copies:
        found.problems.append(
            f"spec.predictor.minReplicas must be at most maxReplicas, was {low_copies} with"
            f" maxReplicas {high_copies}"
        )
        del found.policy["min_copies"]
    if timeout := _number(found, predictor, "timeout", low=0, high=_MAX_SECONDS):
        found.policy["deadline_s"] = float(timeout)
    batcher = predictor.get("batcher")
    if batcher is None:
        return
    if not isinstance(batcher, dict):
        found.problems.append(f"spec.predictor.batcher must be an object, was {shown(batcher)}")
        return
    if rows := _number(found, batcher, "maxBatchSize", low=0, high=4096, under="batcher."):
        found.policy["max_batch_size"] = rows
    latency = _number(found, batcher, "maxLatency", low=0, high=600_000, under="batcher.")
    if latency is not None:
        found.policy["max_batch_wait_s"] = latency / 1000


def _number(
    found: Predictor, parent: Mapping[str, Any], key: str, *, low: int, high: int, under: str = ""
) -> int | None:
    value = parent.get(key)
    if value is None:
        return None
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        value = int(value)
    if type(value) is not int or not low <= value <= high:
        found.problems.append(
            f"spec.predictor.{under}{key} must be a whole number from {low} to {high},"
            f" was {shown(value)}"
        )
        return None
    return value


def _reject_unsupported(found: Predictor, predictor: Mapping[str, Any]) -> None:
    found.problems += [
        f"spec.predictor.{key} is not supported; {advice}"
        for key, advice in _REFUSED.items()
        if predictor.get(key) not in (None, [], {}, _ASKS_NOTHING.get(key))
    ]


def format_needs(name: object) -> str:
    """What the pods' own engines lack for a `modelFormat`, and the way out; empty: nothing."""
    if not isinstance(name, str) or name not in (*UNSERVED_FORMATS, *SERVER_FORMATS):
        return ""
    text, advice = f"no engine here reads modelFormat {name}", "use a pool with a model server"
    if name in UNSERVED_FORMATS:
        return f"{text}: {UNSERVED_FORMATS[name]} and declare modelFormat onnx, or {advice}"
    return f"{text}: {advice}"


def join_needs(*needs: str) -> str:
    """`ModelSpec.needs` of several; empty ones are left out."""
    return "; ".join(each for each in needs if each)


def needs_without(needs: str, what: str) -> str:
    """The rest of `needs` without one of them, as both were given to `join_needs`."""
    return join_needs(*(each for each in needs.split("; ") if each != what))


def needs_in_pool(spec: ModelSpec, *, has_server: bool) -> str:
    """What is missing in a pool, whose pods may have a model server: it reads its own formats."""
    return needs_without(spec.needs, format_needs(spec.format)) if has_server else spec.needs


def unmet_needs(spec: ModelSpec, state: ClusterState) -> str:
    """What no pod will ever have; empty: nothing. The next pod of none may have a model server."""
    if not spec.needs:
        return ""
    return needs_in_pool(spec, has_server=state.has_server or not state.pods)


def _needs(found: Predictor, spec: Mapping[str, Any], predictor: Mapping[str, Any]) -> str:
    model_format = found.model.get("modelFormat")
    needs = [format_needs(model_format.get("name") if isinstance(model_format, dict) else None)]
    if predictor.get("containers"):
        needs.append(
            "spec.predictor.containers beside a model are not run: call the model from a service"
            " of your own"
        )
    return join_needs(*needs, machine_needs(spec))
