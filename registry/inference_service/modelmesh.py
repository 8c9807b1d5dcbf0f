"""ModelMesh's objects as ours: InferenceServices and Predictors for a pool, with a report.

Pure. ServingRuntimes become nothing, since a pool's pods read the formats themselves; of storage
secrets only buckets and kinds are read.
"""

import base64
import binascii
import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any, Final

from common.shown_value import shown
from registry.errors import InvalidModel
from registry.inference_service.predictors import SERVED_FORMATS, UNSERVED_FORMATS
from registry.inference_service.reader import API_VERSION, KIND, read_object

MODE_ANNOTATION: Final = "serving.kserve.io/deploymentMode"
MODE: Final = "ModelMesh"
POOL_ANNOTATION: Final = "pilotlight.io/pool"
SECRET: Final = "storage-config"
DEFAULT_KEYS: Final = ("default", "localMinIO")
"""Entries of the secret that ModelMesh takes where an object names none."""
_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_RUNTIMES: Final = ("ServingRuntime", "ClusterServingRuntime")
_PICKLES: Final = (".joblib", ".pkl", ".pickle")
_FILES: Final = (*_PICKLES, ".onnx", ".bst", ".json", ".ubj", ".txt", ".skops")


class Outcome(StrEnum):
    """What became of an object."""

    IMPORTED = "imported"
    NEEDS_WORK = "needs work"
    """Imported, but not served before what the detail says is done."""
    REFUSED = "refused"
    LEFT = "left"
    """No object of ours is made of it."""


@dataclass(frozen=True, slots=True)
class ReportLine:
    """One object of ModelMesh's."""

    object: str
    outcome: Outcome
    detail: str


@dataclass(slots=True)
class ModelmeshImport:
    """InferenceServices to apply, and a line per object that was read."""

    documents: list[dict[str, Any]] = field(default_factory=list)
    report: list[ReportLine] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of a storage secret, without its credentials."""

    kind: str
    bucket: str


def import_modelmesh(documents: Sequence[object], *, pool: str) -> ModelmeshImport:
    """Read the objects of one cluster, in any order; lists are flattened."""
    objects = [each for document in documents for each in _flat(document)]
    entries = {
        _namespace(each): _entries(each)
        for each in objects
        if each.get("kind") == "Secret" and _metadata(each).get("name") == SECRET
    }
    found = ModelmeshImport()
    for each in objects:
        match each.get("kind"):
            case "InferenceService":
                _import_service(found, each, entries.get(_namespace(each), {}), pool)
            case "Predictor":
                _import_service(found, _service_of(each), entries.get(_namespace(each), {}), pool)
            case kind if kind in _RUNTIMES:
                _report_runtime(found, each)
            case "Secret" if _metadata(each).get("name") == SECRET:
                _add(found, each, Outcome.LEFT, _secret_detail(entries[_namespace(each)]))
            case _:
                _add(found, each, Outcome.LEFT, "no object of ModelMesh's")
    return found


def _flat(document: object) -> list[dict[str, Any]]:
    """The document, or the items of a list, as `kubectl get` writes one."""
    if not isinstance(document, dict):
        return []
    items = document.get("items")
    if str(document.get("kind", "")).endswith("List") and isinstance(items, list):
        return [each for item in items for each in _flat(item)]
    return [document]


def _metadata(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(document.get("metadata"))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _namespace(document: Mapping[str, Any]) -> str:
    return str(_metadata(document).get("namespace", "default"))


def _add(
    found: ModelmeshImport, document: Mapping[str, Any], outcome: Outcome, detail: str
) -> None:
    name = f"{_namespace(document)}/{_metadata(document).get('name', '?')}"
    found.report.append(ReportLine(f"{document.get('kind', '?')} {name}", outcome, detail))


# Secrets and runtimes


def _entries(secret: Mapping[str, Any]) -> dict[str, _Entry]:
    """By name, those that can be read."""
    texts = {str(key): str(text) for key, text in _mapping(secret.get("stringData")).items()}
    for key, text in _mapping(secret.get("data")).items():
        try:
            texts[str(key)] = base64.b64decode(str(text), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            continue
    found = {}
    for key, text in texts.items():
        try:
            content = _mapping(json.loads(text))
        except ValueError:
            continue
        bucket = content.get("bucket") or content.get("default_bucket") or ""
        found[key] = _Entry(str(content.get("type", "s3")), str(bucket))
    return found


def _secret_detail(entries: Mapping[str, _Entry]) -> str:
    kept = ", ".join(sorted(entries)) or "none that can be read"
    return f"stays as it is, in the models' namespace; entries: {kept}"


def _report_runtime(found: ModelmeshImport, runtime: Mapping[str, Any]) -> None:
    formats = _mapping(runtime.get("spec")).get("supportedModelFormats")
    names = sorted(
        {
            str(each.get("name"))
            for each in (formats if isinstance(formats, list) else ())
            if isinstance(each, dict)
        }
    )
    read = [name for name in names if name in SERVED_FORMATS]
    others = [_way_out(name) for name in names if name not in SERVED_FORMATS]
    detail = f"the pool's pods read {', '.join(read) or 'none of its formats'} themselves"
    _add(found, runtime, Outcome.LEFT, "; ".join([detail, *others]))


def _way_out(name: str) -> str:
    return f"{name}: {UNSERVED_FORMATS.get(name, 'no engine here; convert the model to ONNX')}"


# Models


def _service_of(predictor: Mapping[str, Any]) -> dict[str, Any]:
    """A Predictor of ModelMesh's first API as an InferenceService."""
    spec = _mapping(predictor.get("spec"))
    s3 = _mapping(_mapping(spec.get("storage")).get("s3"))
    storage: dict[str, Any] = {"path": spec["path"]} if spec.get("path") else {}
    if s3.get("secretKey"):
        storage["key"] = s3["secretKey"]
    if s3.get("bucket"):
        storage["parameters"] = {"bucket": s3["bucket"]}
    metadata = dict(_metadata(predictor))
    metadata["annotations"] = {**_mapping(metadata.get("annotations")), MODE_ANNOTATION: MODE}
    model = {"modelFormat": spec.get("modelType"), "storage": storage}
    return {
        "kind": predictor["kind"],  # as the report names it
        "metadata": metadata,
        "spec": {"predictor": {"model": model}},
    }


def _import_service(
    found: ModelmeshImport, service: Mapping[str, Any], entries: Mapping[str, _Entry], pool: str
) -> None:
    mode = _mapping(_metadata(service).get("annotations")).get(MODE_ANNOTATION)
    if mode != MODE:
        seen = f"was {shown(mode)}" if mode else "has none"
        detail = f"annotation {MODE_ANNOTATION} {seen}, not {MODE}: it stays with KServe"
        _add(found, service, Outcome.LEFT, detail)
        return
    document = _ours(service, pool)
    notes: list[str] = []
    predictor = document["spec"].get("predictor")
    for kind, value in _mapping(predictor).items():
        if isinstance(value, dict) and ("storage" in value or "storageUri" in value):
            predictor[kind] = _with_storage(value, entries, notes)
    try:
        needs = read_object(document).needs
    except InvalidModel as error:
        title = f"{KIND} {_namespace(service)}/{_metadata(service).get('name')}: "
        detail = "; ".join(each.removeprefix(title) for each in error.problems)
        _add(found, service, Outcome.REFUSED, detail)
        return
    found.documents.append(document)
    notes = [needs, *notes] if needs else notes
    outcome = Outcome.NEEDS_WORK if notes else Outcome.IMPORTED
    _add(found, service, outcome, "; ".join(notes) or f"in pool {pool}")


def _ours(service: Mapping[str, Any], pool: str) -> dict[str, Any]:
    """A copy without what the API server and ModelMesh wrote."""
    metadata = _metadata(service)
    annotations = {
        key: text for key, text in _mapping(metadata.get("annotations")).items() if key != _APPLIED
    }
    kept = {key: metadata[key] for key in ("name", "namespace", "labels") if key in metadata}
    spec = copy.deepcopy(dict(_mapping(service.get("spec"))))
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {**kept, "annotations": {**annotations, POOL_ANNOTATION: pool}},
        "spec": spec,
    }


def _with_storage(
    model: Mapping[str, Any], entries: Mapping[str, _Entry], notes: list[str]
) -> dict[str, Any]:
    """The model with its bucket written out, and the folder of a path that names a file."""
    result = {key: value for key, value in model.items() if key != "runtime"}
    storage = dict(_mapping(model.get("storage")))
    if not storage.get("path"):
        uri = result.get("storageUri")
        if isinstance(uri, str):
            result["storageUri"] = _folder(uri, notes)
        return result
    storage.pop("schemaPath", None)
    storage["path"] = _folder(str(storage["path"]), notes)
    parameters = dict(_mapping(storage.get("parameters")))
    key = storage.get("key") or next((name for name in DEFAULT_KEYS if name in entries), None)
    if key is not None:
        storage["key"] = key
    entry = entries.get(str(key))
    if entry is not None and "bucket" not in parameters and entry.bucket:
        parameters["bucket"] = entry.bucket
    if entry is not None and "type" not in parameters and entry.kind != "s3":
        parameters["type"] = entry.kind
    result["storage"] = {**storage, "parameters": parameters}
    return result


def _folder(path: str, notes: list[str]) -> str:
    """The folder of a file, since a model is a folder here."""
    file = PurePosixPath(path)
    if file.suffix.lower() not in _FILES:
        return path
    if file.suffix.lower() in _PICKLES:
        notes.append(
            f"{file.name} is a pickle, which is not read: run `pilotlight convert {file.name} DIR`"
            " and put model.skops beside it"
        )
    folder = path.rpartition("/")[0]
    notes.append(f"{file.name} must be the only model in its folder {folder or '/'}")
    return folder
