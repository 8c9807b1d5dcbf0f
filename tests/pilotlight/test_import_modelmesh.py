"""ModelMesh's objects become InferenceServices of a pool; the report names each."""

import base64
import json
from collections.abc import Mapping
from datetime import date
from typing import Any

import pytest

from pilotlight.imported_objects import ModelmeshImport, Outcome, import_modelmesh
from registry.inference_service.reader import read_object


def service(name: str, model: Mapping[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": name,
            "namespace": "team",
            "annotations": {"serving.kserve.io/deploymentMode": "ModelMesh"},
            "uid": "1",
            **metadata,
        },
        "spec": {"predictor": {"model": dict(model)}},
        "status": {"url": "grpc://modelmesh"},
    }


def secret(**entries: Mapping[str, str]) -> dict[str, Any]:
    data = {
        key: base64.b64encode(json.dumps(entry).encode()).decode() for key, entry in entries.items()
    }
    metadata = {"name": "storage-config", "namespace": "team"}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}


MINIO = {
    "type": "s3",
    "access_key_id": "key",
    "secret_access_key": "hidden",
    "endpoint_url": "http://minio:9000",
    "bucket": "models",
}
ONNX: dict[str, Any] = {
    "modelFormat": {"name": "onnx"},
    "runtime": "triton-2.x",
    "storage": {"key": "localMinIO", "path": "onnx/mnist"},
}


def outcomes(found: ModelmeshImport) -> dict[str, Outcome]:
    return {line.object: line.outcome for line in found.report}


def test_the_bucket_comes_from_the_secret_and_no_credential_leaves_it() -> None:
    found = import_modelmesh([service("mnist", ONNX), secret(localMinIO=MINIO)], pool="small")
    (document,) = found.documents
    spec = read_object(document)
    assert (spec.storage_uri, spec.pool) == ("s3://models/onnx/mnist", "small")
    assert document["spec"]["predictor"]["model"]["storage"]["key"] == "localMinIO"
    assert "runtime" not in document["spec"]["predictor"]["model"]
    assert "status" not in document
    assert "hidden" not in json.dumps([document, *(line.detail for line in found.report)])
    assert outcomes(found)["InferenceService team/mnist"] is Outcome.IMPORTED


def test_parameters_win_over_the_secret() -> None:
    model = {**ONNX, "storage": {**ONNX["storage"], "parameters": {"bucket": "own"}}}
    found = import_modelmesh([service("mnist", model), secret(localMinIO=MINIO)], pool="p")
    assert read_object(found.documents[0]).storage_uri == "s3://own/onnx/mnist"


def test_a_pickle_needs_a_conversion() -> None:
    model = {
        "modelFormat": {"name": "sklearn"},
        "storage": {"path": "sklearn/mnist-svm.joblib", "parameters": {"bucket": "models"}},
    }
    found = import_modelmesh([service("svm", model)], pool="p")
    (line,) = found.report
    assert line.outcome is Outcome.NEEDS_WORK
    assert "mnist-svm.joblib is a pickle: serve it in pods with --allow-pickle" in line.detail
    assert read_object(found.documents[0]).storage_uri == "s3://models/sklearn"


def test_a_format_without_an_engine_says_the_way_out() -> None:
    model = {"modelFormat": {"name": "tensorflow"}, "storageUri": "s3://models/tf"}
    (line,) = import_modelmesh([service("tf", model)], pool="p").report
    assert line.outcome is Outcome.NEEDS_WORK
    assert "tf2onnx" in line.detail


def test_predictors_of_the_first_api() -> None:
    predictor = {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "Predictor",
        "metadata": {"name": "old", "namespace": "team"},
        "spec": {
            "modelType": {"name": "xgboost"},
            "path": "xgb/model.json",
            "storage": {"s3": {"secretKey": "localMinIO", "bucket": "models"}},
        },
    }
    found = import_modelmesh([predictor], pool="p")
    spec = read_object(found.documents[0])
    assert (str(spec.name), spec.storage_uri, spec.format) == (
        "team/old",
        "s3://models/xgb",
        "xgboost",
    )
    assert [line.object for line in found.report] == ["Predictor team/old"]


def test_runtimes_and_other_objects_are_left_with_a_reason() -> None:
    runtime = {
        "kind": "ServingRuntime",
        "metadata": {"name": "mlserver", "namespace": "team"},
        "spec": {"supportedModelFormats": [{"name": "sklearn"}, {"name": "pmml"}, "odd"]},
    }
    kserve = service("own", ONNX, annotations={})
    items = {"kind": "List", "items": [runtime, kserve, {"kind": "Service", "metadata": {}}]}
    found = import_modelmesh([items, None, "text"], pool="p")
    assert set(outcomes(found).values()) == {Outcome.LEFT}
    assert found.documents == []
    assert "read sklearn" in found.report[0].detail
    assert "pmml" in found.report[0].detail


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"storage": {"path": "a"}}, id="no bucket"),
        pytest.param({"storage": {"path": "a", "parameters": {"bucket": 3}}}, id="odd bucket"),
        pytest.param({"modelFormat": None}, id="no format"),
    ],
)
def test_what_cannot_be_is_refused_by_name(change: Mapping[str, Any]) -> None:
    found = import_modelmesh([service("m", {**ONNX, **change})], pool="p")
    assert [line.outcome for line in found.report] == [Outcome.REFUSED]
    assert "spec.predictor.model" in found.report[0].detail
    assert found.documents == []


def test_odd_objects_end_in_no_error() -> None:
    odd = [
        {"kind": "InferenceService"},
        {"kind": "InferenceService", "metadata": [], "spec": 3},
        service("a", {}) | {"spec": {"predictor": []}},
        service("b", {}, annotations="x"),
        {"kind": "Predictor", "spec": {"storage": 3}},
        {"kind": "Secret", "metadata": {"name": "storage-config"}, "data": {"a": "?", "b": 3}},
        {"kind": "ServingRuntime"},
    ]
    assert len(import_modelmesh(odd, pool="p").report) == len(odd)


def test_a_predictor_without_a_path_needs_work() -> None:
    predictor = {
        "kind": "Predictor",
        "metadata": {"name": "old", "namespace": "team"},
        "spec": {"modelType": {"name": "onnx"}, "storage": {"s3": {"secretKey": "minio"}}},
    }
    found = import_modelmesh([predictor, secret(minio=MINIO)], pool="default")
    assert found.report[0].outcome is Outcome.NEEDS_WORK
    assert "spec.predictor.model has no storageUri" in found.report[0].detail


def test_a_date_as_a_key_is_kept_for_apply_to_refuse() -> None:
    odd = service("mnist", {**ONNX, "parameters": {date(2024, 1, 1): "x"}})
    found = import_modelmesh([odd, secret(localMinIO=MINIO)], pool="p")
    assert [line.outcome for line in found.report] == [Outcome.IMPORTED, Outcome.LEFT]
