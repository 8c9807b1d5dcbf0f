"""InferenceServices as KServe's users write them: the older forms, and KServe's own samples."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from registry.domain.model import LogMode, ModelSpec, RequestLog, Task
from registry.domain.records import decode, encode_spec
from registry.errors import InvalidModel
from registry.inference_service.predictors import needs_in_pool
from registry.inference_service.reader import read_documents
from tests.registry.inference_service import kserve_samples

DOCS = Path(__file__).parents[3] / "docs" / "compatibility.md"
ACCEPTED = 90
"""At least so many of KServe's objects."""


def _read(predictor: dict[str, Any], **spec: Any) -> ModelSpec:
    declared = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "iris", "annotations": spec.pop("annotations", {})},
        "spec": {"predictor": predictor, **spec},
    }
    (found,) = read_documents([("iris.yaml", yaml.safe_dump(declared))])
    return found


@pytest.mark.parametrize("kind", ["sklearn", "xgboost", "lightgbm", "onnx", "pytorch", "triton"])
def test_the_older_form_names_the_format(kind: str) -> None:
    found = _read({kind: {"storageUri": "gs://bucket/iris"}})
    protocol = "v2" if kind == "triton" else "v1"
    assert (found.format, found.storage_uri) == (kind, "gs://bucket/iris")
    assert (found.protocol, found.needs) == (protocol, "")


def test_counts_times_and_batches_become_a_policy() -> None:
    found = _read(
        {
            "sklearn": {"storageUri": "gs://bucket/iris", "protocolVersion": "v2"},
            "minReplicas": 2,
            "maxReplicas": 4,
            "timeout": 30,
            "containerConcurrency": 5,
            "batcher": {"maxBatchSize": 32, "maxLatency": 50},
        }
    )
    policy = found.policy
    assert (policy.min_copies, policy.max_copies, policy.deadline_s) == (2, 4, 30.0)
    assert (policy.max_batch_size, policy.max_batch_wait_s) == (32, 0.05)
    assert (policy.target_ongoing_requests, found.protocol) == (5, "v2")


def test_annotations_win_over_the_predictors_fields() -> None:
    found = _read(
        {"onnx": {"storageUri": "s3://bucket/iris"}, "minReplicas": 2},
        annotations={"pilotlight.io/min-copies": "0"},
    )
    assert found.policy.min_copies == 0


def test_storage_by_bucket_and_path() -> None:
    storage = {"key": "minio", "path": "sklearn", "parameters": {"bucket": "examples"}}
    found = _read({"sklearn": {"storage": storage}})
    assert found.storage_uri == "s3://examples/sklearn"
    assert found.credentials == "storage-config/storage-config/minio"


@pytest.mark.parametrize("kind", [[], {}, ["s3"], 3])
def test_a_storage_type_that_is_no_text_is_a_mistake(kind: object) -> None:
    storage = {"path": "p", "parameters": {"bucket": "b", "type": kind}}
    with pytest.raises(InvalidModel, match="type must be s3 or gs"):
        _read({"sklearn": {"storage": storage}})


def test_probabilities_by_kserves_environment_variable() -> None:
    model = {"storageUri": "gs://bucket/iris", "env": [{"name": "PREDICT_PROBA", "value": "true"}]}
    assert _read({"sklearn": model}).task is Task.TABULAR_CLASSIFICATION
    assert _read({"xgboost": model}).task is None


def test_a_key_in_the_environment_is_warned_of_with_the_way_out() -> None:
    model = {"storageUri": "hf://team/m", "env": [{"name": "HF_TOKEN", "value": "hf_x"}]}
    assert "Secret of the model's service account" in str(_read({"huggingface": model}).warnings)


@pytest.mark.parametrize(
    ("predictor", "spec", "names"),
    [
        pytest.param({"tensorflow": {"storageUri": "gs://b/m"}}, {}, "tf2onnx", id="tensorflow"),
        pytest.param({"containers": [{"image": "mine"}]}, {}, "containers", id="own server"),
        pytest.param(
            {"sklearn": {"storageUri": "gs://b/m"}},
            {"transformer": {"containers": [{}]}},
            "spec.transformer",
            id="transformer",
        ),
        pytest.param(
            {"sklearn": {"storageUri": "gs://b/m"}},
            {"explainer": {"alibi": {}}},
            "spec.explainer",
            id="explainer",
        ),
    ],
)
def test_what_a_pool_has_not_is_said_and_kept(
    predictor: dict[str, Any], spec: dict[str, Any], names: str
) -> None:
    found = _read(predictor, **spec)
    assert names in found.needs
    assert decode(ModelSpec, encode_spec(found)).needs == found.needs


@pytest.mark.parametrize(
    ("spec", "rest"),
    [
        pytest.param({}, "", id="format"),
        pytest.param({"transformer": {"containers": [{}]}}, "spec.transformer", id="transformer"),
    ],
)
@pytest.mark.parametrize("model_format", ["tensorflow", "mlflow"])
def test_a_model_server_takes_the_place_of_an_engine_and_of_nothing_else(
    model_format: str, spec: dict[str, Any], rest: str
) -> None:
    model = {"modelFormat": {"name": model_format}, "storageUri": "gs://b/m"}
    found = _read({"model": model}, **spec)
    assert f"modelFormat {model_format}" in needs_in_pool(found, has_server=False)
    missing = needs_in_pool(found, has_server=True)
    assert (bool(missing), rest in missing) == (bool(rest), True)
    assert "modelFormat" not in missing


def test_a_logger_is_read_and_kept() -> None:
    logger = {"url": "http://dumper.default/", "metadataHeaders": ["X-User"]}
    found = _read({"sklearn": {"storageUri": "gs://b/m"}, "logger": logger})
    assert found.logger == RequestLog("http://dumper.default/", LogMode.ALL, ("x-user",))
    assert decode(ModelSpec, encode_spec(found)) == found
    assert (
        decode(ModelSpec, encode_spec(_read({"sklearn": {"storageUri": "gs://b/m"}}))).logger
        is None
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"url": "https://dumper/"}, "logger.url must be http://"),
        ({"url": "http://"}, "logger.url must be http://"),
        ({"url": "http://user:word@dumper/"}, "without user"),
        ({"url": "http://dumper:99999/"}, "logger.url must be http://"),
        ({"url": "http://dumper/a\nb"}, "logger.url must be http://"),
        ({"mode": "some"}, "logger.mode must be one of all, request, response"),
        ({"mode": ["all"]}, "logger.mode must be one of"),
        ({"metadataHeaders": "x-user"}, "metadataHeaders must be a list"),
        ({"metadataHeaders": ["a b"]}, "names of headers"),
        ({"metadataHeaders": ["Authorization"]}, "has a credential"),
        ({"storage": {"path": "a"}}, "logger.storage is not supported"),
    ],
)
def test_mistakes_in_a_logger_are_named(change: dict[str, Any], says: str) -> None:
    logger = {"url": "http://dumper/", **change}
    with pytest.raises(InvalidModel, match=says):
        _read({"sklearn": {"storageUri": "gs://b/m"}, "logger": logger})


def test_kserves_own_samples_are_as_documented() -> None:
    module = kserve_samples.module_folder()
    if module is None:
        pytest.skip("KServe's module is not unpacked: scripts/kubernetes/build does")
    found = list(kserve_samples.samples(module))
    lines = kserve_samples.table(found)
    assert sum(each.accepted for each in found) >= ACCEPTED
    text = DOCS.read_text()
    missing = [line for line in lines if line not in text]
    assert not missing, "docs/compatibility.md is not what kserve_samples prints"
