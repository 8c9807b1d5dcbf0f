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
from registry.inference_service.documents import SECRET_BUCKET, text_of
from registry.inference_service.fields import LEGACY_KINDS
from registry.inference_service.server_arguments import (
    MOUNT,
    ServerArguments,
    format_name,
    read_arguments,
)

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
    rollout_percent: int | None = None
    needs: str = ""
    """What is missing for it to be served; empty: nothing."""
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """What has no effect beside the fields that `fields.review` finds."""


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
    _read_storage_uris(found, predictor.get("storageUris"))
    _read_policy(found, predictor)
    found.logger = read_logger(predictor.get("logger"), found.problems)
    found.needs = _needs(found, spec, predictor)
    return found


def _read_without_model(found: Predictor, predictor: Mapping[str, Any]) -> None:
    if not predictor.get("containers"):
        found.problems.append(
            f"spec.predictor must have model, or one of {', '.join(LEGACY_KINDS)};"
            f" it has {shown(list(predictor))}"
        )
        return
    _read_policy(found, predictor)
    found.logger = read_logger(predictor.get("logger"), found.problems)
    found.needs = (
        "spec.predictor.containers is a server of your own, which a pool cannot run: KServe alone"
        " serves it, in a cluster, without the annotations of a pool"
    )


_OF_STORAGE: Final = ("HF_TOKEN", "AWS_", "AZURE_", "GOOGLE_", "S3_")
_INSTEAD: Final = "; put it into a Secret of the model's service account, whose keys are variables"


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
        name = each.get("name") if isinstance(each, dict) else None
        if name == "PREDICT_PROBA":
            found.wants_probabilities = str(each.get("value")).lower() == "true"
        else:
            found.warnings.append(
                f"{found.path}.env {text_of(name)} has no effect: the pods of the pool have their"
                f" own environment{_INSTEAD if str(name).startswith(_OF_STORAGE) else ''}"
            )
    found.arguments = read_arguments(found.model, found.path)
    found.problems += found.arguments.problems
    found.warnings += [
        f"{found.path}.args {each} has no effect: the pods of the pool have no such argument"
        for each in dict.fromkeys(found.arguments.ignored)
    ]
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


def _read_storage_uris(found: Predictor, listed: object) -> None:
    """The URI that KServe mounts where its servers read the model."""
    for at, each in enumerate(listed if isinstance(listed, list) else ()):
        mount = each.get("mountPath") or MOUNT if isinstance(each, dict) else ""
        if mount == MOUNT and found.model and not found.model.get("storageUri"):
            found.model["storageUri"] = each.get("uri")
        else:
            found.warnings.append(
                f"spec.predictor.storageUris[{at}] has no effect: a model is one folder, the one"
                f" with mountPath {MOUNT}"
            )


def _uri_of_storage(found: Predictor, storage: Mapping[str, Any]) -> str:
    """The URI of `storage.path` in `storage.parameters.bucket`; without it in the Secret's."""
    parameters = storage.get("parameters")
    values = parameters if isinstance(parameters, dict) else {}
    kind, bucket, path = values.get("type", "s3"), values.get("bucket"), storage["path"]
    where = f"{found.path}.storage"
    if not isinstance(kind, str) or kind not in _BUCKET_SCHEMES:
        found.problems.append(
            f"{where}.parameters.type must be s3 or gs, was {shown(kind)}; write"
            f" {found.path}.storageUri"
        )
    elif not isinstance(path, str) or not isinstance(bucket or "", str):
        found.problems.append(f"{where} must have texts as path and as parameters.bucket")
    elif not bucket and (kind != "s3" or not storage.get("key")):
        found.problems.append(
            f"{where} must have parameters.bucket, or the key of an S3 Secret that names its bucket"
        )
    else:
        return f"{_BUCKET_SCHEMES[kind]}://{bucket or SECRET_BUCKET}/{path.lstrip('/')}"
    return "s3://unknown/"  # the problem above is reported alone


def _read_policy(found: Predictor, predictor: Mapping[str, Any]) -> None:
    """Counts, times and batches as KServe's fields give them."""
    for key, name, low in (
        ("minReplicas", "min_copies", 0),
        ("maxReplicas", "max_copies", 0),
        ("containerConcurrency", "target_ongoing_requests", 0),
        ("scaleTarget", "target_ongoing_requests", 1),
    ):
        if key == "scaleTarget" and predictor.get("scaleMetric") != "concurrency":
            continue  # it counts something else
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
    percent = _number(found, predictor, "canaryTrafficPercent", low=0, high=100)
    found.rollout_percent = None if percent == 100 else percent
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
    needs = [format_needs(format_name(found.model))]
    if found.model and not found.model.get("storageUri"):
        needs.append(
            f"{found.path} has no storageUri, as a server of TrainedModels has none: declare each"
            " of them as an InferenceService, with its storageUri"
        )
    if predictor.get("containers"):
        needs.append(
            "spec.predictor.containers beside a model are not run: call the model from a service"
            " of your own"
        )
    return join_needs(*needs, machine_needs(spec))
