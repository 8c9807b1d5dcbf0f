"""MLflow's models as InferenceServices. Pure: `MLmodel` was read, and the folder's files listed.

A flavor is a way to read a model: that of its own library is taken. `python_function`, which most
models have too, is code.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from common.shown_value import shown
from registry.inference_service.modelmesh import POOL_ANNOTATION
from registry.inference_service.predictors import UNSERVED_FORMATS
from registry.inference_service.reader import API_VERSION, KIND

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
    """The model of the folder at `uri`, whose `files` are paths in it. Raises NotServed."""
    flavors = _mapping(mlmodel.get("flavors"))
    known = ("sklearn", *_LIBRARIES, "transformers", *_FOLDERS)
    flavor = next((each for each in known if each in flavors), None)
    if flavor is None:
        raise NotServed(_way_out(flavors))
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


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _way_out(flavors: Mapping[str, Any]) -> str:
    others = [each for each in flavors if each != "python_function"] or ["python_function"]
    ways = [f"{each}: {_WAYS_OUT.get(each, _ANY_WAY_OUT)}" for each in others if each in flavors]
    return "; ".join(ways) or f"MLmodel has no flavors, was {shown(flavors)}: is it MLflow's?"


def _pickle_notes(file: str) -> list[str]:
    if file.endswith(".skops"):
        return []
    return [
        f"{file} is a pickle: serve it in pods with --allow-pickle, or run `pilotlight convert"
        f" {file} DIR` and declare DIR"
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
