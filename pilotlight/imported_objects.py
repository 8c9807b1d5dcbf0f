"""ModelMesh's and MLflow's objects as InferenceServices and Predictors for a pool, with a report.

Pure. ServingRuntimes become nothing, since a pool's pods read the formats themselves; of storage
secrets only buckets and kinds are read.
"""

import base64
import binascii
import copy
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any, Final

from common.shown_value import shown
from registry.errors import InvalidModel
from registry.inference_service.model_resource import MODE as MODE_ANNOTATION
from registry.inference_service.predictors import SERVED_FORMATS, UNSERVED_FORMATS
from registry.inference_service.reader import API_VERSION, KIND, read_object

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
            f"{file.name} is a pickle: serve it in pods with --allow-pickle, or save the model with"
            " skops.io.dump as model.skops in its place"
        )
    folder = path.rpartition("/")[0]
    notes.append(f"{file.name} must be the only model in its folder {folder or '/'}")
    return folder


_LIBRARIES: Final = ("xgboost", "lightgbm", "onnx")
_FOLDERS: Final = {"sentence_transformers": "model.sentence_transformer"}
_WAYS_OUT: Final = {
    **UNSERVED_FORMATS,
    "keras": UNSERVED_FORMATS["tensorflow"],
    "pytorch": "export the network with torch.export and declare modelFormat pytorch",
    "python_function": "it is code: declare modelFormat mlflow in a pool with MLServer",
}
_ANY_WAY_OUT: Final = (
    "convert the model to ONNX, or declare modelFormat mlflow in a pool with MLServer"
)
_NOT_IN_JSON: Final = frozenset({"datetime", "binary"})


class NotServed(Exception):
    """No engine here reads the model; the text names the way out."""


@dataclass(frozen=True, slots=True)
class MlflowImport:
    """An InferenceService, and what must be done before it is served."""

    document: dict[str, Any]
    notes: tuple[str, ...]


def import_mlflow(
    mlmodel: Mapping[str, Any],
    files: Collection[str],
    *,
    uri: str,
    name: str,
    namespace: str,
    pool: str,
) -> MlflowImport:
    """The model of the folder at `uri`, whose `files` are paths in it. Raises NotServed. Pure.

    Of its flavors (ways to read it) that of its own library is taken; `python_function`, which most
    models have too, is code.
    """
    flavors = _mapping(mlmodel.get("flavors"))
    known = ("sklearn", *_LIBRARIES, "transformers", *_FOLDERS)
    flavor = next((each for each in known if each in flavors), None)
    if flavor is None:
        raise NotServed(_mlflow_way_out(flavors))
    options, notes = _mapping(flavors[flavor]), _signature_notes(mlmodel)
    model_format, location = flavor, uri
    if flavor == "sklearn":
        notes += _pickle_notes(str(options.get("pickled_model", "model.pkl")))
    elif flavor not in _LIBRARIES:
        model_format, location = "huggingface", _location(flavor, options, uri)
        notes += _component_notes(files) if location == f"{uri}/model" else []
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace, "annotations": {POOL_ANNOTATION: pool}},
        "spec": {
            "predictor": {"model": {"modelFormat": {"name": model_format}, "storageUri": location}}
        },
    }
    return MlflowImport(document, tuple(notes))


def _mlflow_way_out(flavors: Mapping[str, Any]) -> str:
    others = [each for each in flavors if each != "python_function"] or ["python_function"]
    ways = [f"{each}: {_WAYS_OUT.get(each, _ANY_WAY_OUT)}" for each in others if each in flavors]
    return "; ".join(ways) or f"MLmodel has no flavors, was {shown(flavors)}: is it MLflow's?"


def _pickle_notes(file: str) -> list[str]:
    if file.endswith(".skops"):
        return []
    return [
        f"{file} is a pickle: serve it in pods with --allow-pickle, or log the model with"
        ' serialization_format="skops"'
    ]


def _location(flavor: str, options: Mapping[str, Any], uri: str) -> str:
    """Of a network's folder; that of a model saved as a reference is the hub's."""
    if "peft_adaptor" in options:
        raise NotServed("the model is a PEFT adapter: declare it with pilotlight.io/base-model")
    if "model_binary" not in options and "source_model_revision" in options:
        return f"hf://{options.get('source_model_name')}@{options['source_model_revision']}"
    return f"{uri}/{_FOLDERS.get(flavor) or options.get('model_binary', 'pipeline')}"


def _component_notes(files: Collection[str]) -> list[str]:
    """MLflow keeps the tokenizer and image processor beside the network, not with it."""
    parts = [each.split("/") for each in files if each.startswith("components/")]
    missing = sorted({part[1] for part in parts if f"model/{part[-1]}" not in files})
    return [f"copy the files of components/{each} to model" for each in missing]


def _signature_notes(mlmodel: Mapping[str, Any]) -> list[str]:
    """`signature.inputs` is a text with JSON: a list of columns, or of one tensor."""
    inputs = _mapping(mlmodel.get("signature")).get("inputs")
    try:
        columns = json.loads(inputs) if isinstance(inputs, str) else []
    except ValueError as error:
        raise NotServed(f"its signature's inputs are not JSON: {error}") from error
    return [
        f"column {each.get('name')!r} has the type {each['type']}, which JSON has not: give the"
        " model numbers or texts"
        for each in columns
        if isinstance(each, dict) and each.get("type") in _NOT_IN_JSON
    ]
