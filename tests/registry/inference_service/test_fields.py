"""Every field of KServe's objects is honoured, warned of or refused."""

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from registry.domain.model import ModelSpec
from registry.errors import InvalidModel
from registry.inference_service.fields import (
    ANNOTATIONS,
    LABELS,
    OBJECTS,
    auth_problem,
    fields_of,
    review,
    warnings_of,
)
from registry.inference_service.graph_reader import read_graphs
from registry.inference_service.reader import read_documents, read_object
from tests.registry.inference_service import kserve_fields
from tests.registry.inference_service.kserve_samples import module_folder

DOCS = Path(__file__).parents[3] / "docs" / "compatibility.md"


def declared(spec: dict[str, Any] | None = None, **predictor: Any) -> dict[str, Any]:
    model = {"modelFormat": {"name": "sklearn"}, "storageUri": "s3://models/iris"}
    model |= predictor.pop("model", {})
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": "iris"},
        "spec": {"predictor": {"model": model, **predictor}, **(spec or {})},
    }


def annotated(key: str, value: str = "true", *, kind: str = "annotations") -> dict[str, Any]:
    document = declared()
    document["metadata"][kind] = {key: value}
    return document


def read(document: dict[str, Any]) -> ModelSpec:
    (spec,) = read_documents([("iris.yaml", yaml.safe_dump(document))])
    return spec


@pytest.mark.parametrize("place", kserve_fields.read_list(), ids=" ".join)
def test_each_field_of_kserves_schema_has_a_rule(place: tuple[str, str]) -> None:
    schema, rules = kserve_fields.read_list()[place], fields_of(*place).keys()
    assert schema - rules == set(), "decide what these fields mean here"
    assert rules - schema <= {"catboost"}, "KServe has no such fields"


def test_the_list_has_all_objects_of_the_table() -> None:
    listed = {path for _, path in kserve_fields.read_list()}
    assert {path for each in OBJECTS.values() for path in each} - {ANNOTATIONS, LABELS} == listed


def test_the_list_is_that_of_kserves_schemas() -> None:
    module = module_folder()
    if module is None:
        pytest.skip("KServe's module is not unpacked: scripts/kubernetes/build does")
    assert kserve_fields.fields_of_module(module) == kserve_fields.read_list()


def test_the_documents_have_the_table() -> None:
    missing = [line for line in kserve_fields.table() if line not in DOCS.read_text()]
    assert not missing, "docs/compatibility.md is not what kserve_fields prints"


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (declared(initContainers=[{"name": "a"}]), "spec.predictor.initContainers"),
        (declared(hostNetwork=True), "spec.predictor.hostNetwork"),
        (declared(storageContainerName="mine"), "spec.predictor.storageContainerName"),
        (declared(name="stable"), "spec.predictor.name"),
        (declared(batcher={"timeout": 5}), "spec.predictor.batcher.timeout"),
        (
            declared(model={"modelFormat": {"name": "sklearn", "version": "1"}}),
            "spec.predictor.model.modelFormat.version",
        ),
        (declared(model={"env": [{"name": "A", "value": "b"}]}), "spec.predictor.model.env A"),
        (declared(model={"resources": {"limits": {"cpu": 1}}}), "spec.predictor.model.resources"),
        (declared(model={"storageUris": [{}]}), "spec.predictor.model.storageUris"),
        (
            declared(storageUris=[{"uri": "s3://models/lora", "mountPath": "/mnt/lora"}]),
            "spec.predictor.storageUris[0]",
        ),
        (declared(scaleTarget=80), "spec.predictor.scaleTarget"),
        (declared(scaleMetric="cpu"), "spec.predictor.scaleMetric"),
        (declared(scaleMetric="memory"), "spec.predictor.scaleMetric"),
        (declared(scaleMetric="rps"), "spec.predictor.scaleMetric"),
        (declared(scaleMetricType="Utilization"), "spec.predictor.scaleMetricType"),
        (declared(minReplica=1), "spec.predictor.minReplica"),
        (declared(spec={"predictr": {}}), "spec.predictr"),
        *(
            (annotated(key), f"metadata.annotations[{key}]")
            for key in (
                "serving.kserve.io/autoscalerClass",
                "serving.kserve.io/metrics",
                "serving.kserve.io/targetUtilizationPercentage",
                "autoscaling.knative.dev/target",
                "serving.kserve.io/enable-metric-aggregation",
                "serving.kserve.io/enable-prometheus-scraping",
                "prometheus.io/port",
                "serving.kserve.io/stopp",
            )
        ),
        (
            annotated("networking.kserve.io/visibility", "cluster-local", kind="labels"),
            "metadata.labels[networking.kserve.io/visibility]",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_has_no_effect_is_warned_of(document: dict[str, Any], path: str) -> None:
    [warning] = read(document).warnings
    assert warning.startswith(f"{path} has no effect: ")
    assert len(warning) < 200  # kubectl's server cuts longer ones


@pytest.mark.parametrize(
    ("document", "line"),
    [
        (
            declared(model={"confidential": {"enabled": True}}),
            "spec.predictor.model.confidential.enabled is not supported; models are read without",
        ),
        (declared(workerSpec={"tensorParallelSize": 2}), "spec.predictor.workerSpec is not"),
        (declared(autoScaling={"metrics": [{}]}), "spec.predictor.autoScaling is not supported"),
        (
            declared(logger={"url": "http://x/", "storage": {"path": "a"}}),
            "spec.predictor.logger.storage is not supported",
        ),
    ],
)
def test_what_would_break_a_promise_is_refused(document: dict[str, Any], line: str) -> None:
    with pytest.raises(
        InvalidModel, match=r"iris\.yaml: InferenceService default/iris: "
    ) as caught:
        read(document)
    assert line in str(caught.value)


@pytest.mark.parametrize(
    "document",
    [
        declared(),
        declared(scaleTarget=5, scaleMetric="concurrency"),
        declared(model={"confidential": {"enabled": False}}),
        declared(model={"env": [{"name": "PREDICT_PROBA", "value": "true"}]}),
        declared(automountServiceAccountToken=False, serviceAccountName="reader"),
        annotated("kubectl.kubernetes.io/last-applied-configuration", "{}"),
        annotated("serving.kserve.io/deploymentMode", "ModelMesh"),
        annotated("team", "a", kind="labels"),
    ],
)
def test_what_is_honoured_is_not_warned_of(document: dict[str, Any]) -> None:
    assert list(review(document, "InferenceService")) == []
    assert read(document).warnings == ()


def test_a_mode_that_a_clusters_webhook_refuses_is_warned_of() -> None:
    document = annotated("serving.kserve.io/deploymentMode", "Standard")
    assert read(document).warnings == ()  # KServe's own
    document["metadata"]["annotations"]["pilotlight.io/pool"] = "default"
    [line] = read(document).warnings
    assert "must be 'ModelMesh' for a model of a pool on a cluster, was 'Standard'" in line


def test_a_target_of_concurrency_counts_requests_and_no_other_does() -> None:
    assert (
        read(declared(scaleTarget=7, scaleMetric="concurrency")).policy.target_ongoing_requests == 7
    )
    plain = read(declared()).policy.target_ongoing_requests
    for metric in ("", "cpu", "rps"):
        spec = read(declared(scaleTarget=80, scaleMetric=metric))
        assert spec.policy.target_ongoing_requests == plain


@pytest.mark.parametrize("value", ["true", "True"])
def test_a_stopped_model_says_so_in_its_needs(value: str) -> None:
    stopped = read(annotated("serving.kserve.io/stop", value))
    assert stopped.is_stopped
    assert stopped.warnings == ()
    assert not read(annotated("serving.kserve.io/stop", "false")).is_stopped
    assert stopped.generation == read(declared()).generation


def test_a_model_that_wants_clients_asked_has_a_problem_where_they_are_not() -> None:
    key = "security.opendatahub.io/enable-auth"
    spec = read(annotated(key))
    assert spec.warnings == ()  # the reader does not know the gateway
    start = f"InferenceService default/iris: metadata.annotations[{key}] is not supported; clients"
    assert (auth_problem(spec) or "").startswith(start)
    assert auth_problem(read(annotated(key, "false"))) is None
    assert auth_problem(read(declared())) is None


def test_storage_uris_of_one_folder_are_its_uri() -> None:
    document = declared(
        storageUris=[
            {"uri": "s3://models/lora", "mountPath": "/mnt/lora"},
            {"uri": "s3://models/other"},
        ]
    )
    del document["spec"]["predictor"]["model"]["storageUri"]
    spec = read(document)
    assert spec.storage_uri == "s3://models/other"
    assert [each.partition(" has")[0] for each in spec.warnings] == [
        "spec.predictor.storageUris[0]"
    ]


def test_fields_of_a_graphs_router_are_warned_of() -> None:
    text = """
        apiVersion: serving.kserve.io/v1alpha1
        kind: InferenceGraph
        metadata: {name: chain}
        spec:
          minReplicas: 2
          routerTimeouts: {serverRead: 5}
          nodes: {root: {routerType: Sequence, steps: [{serviceName: a}]}}
    """
    [graph] = read_graphs([("graph.yaml", text)])
    assert [each.partition(" has")[0] for each in graph.warnings] == [
        "spec.minReplicas",
        "spec.routerTimeouts.serverRead",
    ]


def test_a_model_of_our_own_kind_is_warned_of_alike() -> None:
    document = declared(hostNetwork=True)
    document |= {"apiVersion": "pilotlight.io/v1alpha1", "kind": "Model"}
    [warning] = warnings_of(read(document))
    assert warning.startswith("Model default/iris: spec.predictor.hostNetwork has no effect")


@pytest.mark.parametrize(
    "fields",
    [
        {f"minReplica{number}": 1 for number in range(9_000)},
        {
            "storageUris": [
                {"uri": "s3://models/a", "mountPath": f"/mnt/{each}"}
                | {f"mountPat{number}": 1 for number in range(60)}
                for each in range(150)
            ]
        },
    ],
    ids=["in one object", "in many"],
)
def test_an_object_of_many_unknown_fields_is_read_soon_and_warned_of_briefly(
    fields: dict[str, Any],
) -> None:
    document = declared()
    document["spec"]["predictor"] |= fields
    began_s = time.thread_time()
    spec = read_object(document)
    assert time.thread_time() - began_s < 1.0  # not a search for near names in each
    assert len(spec.warnings) == 64
