"""The objects of transformers and explainers, as KServe makes them in mode Standard."""

from typing import Any

import pytest

from controller.component_objects import component_objects, predictor_service, removed_objects
from controller.resources import ServiceObject, read_model, read_service
from tests.controller import objects

GATEWAY = "http://gateway.pilotlight.svc.cluster.local/serving/team/translate"


def model(*, kind: str = "InferenceService", **transformer: Any) -> ServiceObject:
    document = objects.service() if kind == "InferenceService" else objects.model()
    document["metadata"]["labels"] = {"team": "red", "app": "mine"}
    document["metadata"]["annotations"] |= {"sidecar.istio.io/inject": "true"}
    transformer.setdefault("containers", [{"image": "mine:1"}])
    document["spec"]["transformer"] = transformer
    return read_service(document) if kind == "InferenceService" else read_model(document)


def made(found: ServiceObject, gateway: str = GATEWAY) -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in component_objects(found, "transformer", gateway)}


def container(**first: Any) -> dict[str, Any]:
    found = made(model(containers=[{"image": "mine:1", **first}]))
    first_of: dict[str, Any] = found["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    return first_of


def test_the_container_gets_what_kserve_gives_it() -> None:
    assert container() == {
        "name": "kserve-container",
        "image": "mine:1",
        "args": [
            *("--model_name", "translate"),
            *("--predictor_host", "translate-predictor.team"),
            *("--http_port", "8080"),
        ],
        "env": [{"name": "INFERENCE_SERVICE_NAME", "value": "translate"}],
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 10},
    }


def test_what_the_user_writes_stays() -> None:
    probe = {"httpGet": {"path": "/", "port": 9000}}
    found = container(
        name="own",
        args=["--model_name=other", "--x"],
        ports=[{"containerPort": 9000}],
        readinessProbe=probe,
        resources={"limits": {"cpu": "2"}},
    )
    assert (found["name"], found["readinessProbe"]) == ("own", probe)
    assert found["args"][:3] == ["--model_name=other", "--x", "--predictor_host"]
    assert found["resources"] == {"limits": {"cpu": "2"}}


def test_the_rest_of_the_pod_is_passed_on_without_the_fields_of_the_component() -> None:
    found = made(
        model(
            containers=[{"image": "mine:1"}, {"name": "beside", "image": "b"}],
            serviceAccountName="reader",
            nodeSelector={"disk": "fast"},
            minReplicas=2,
            containerConcurrency=3,
            deploymentStrategy={"type": "Recreate"},
            labels={"tier": "front"},
            annotations={"note": "x"},
        )
    )["Deployment"]
    pod = found["spec"]["template"]["spec"]
    assert pod.keys() == {"containers", "serviceAccountName", "nodeSelector"}
    assert [each["name"] for each in pod["containers"]] == ["kserve-container", "beside"]
    assert pod["containers"][0]["args"][-2:] == ["--workers", "3"]
    assert found["spec"]["strategy"] == {"type": "Recreate"}
    assert "replicas" not in found["spec"]  # which the autoscaler sets
    metadata = found["spec"]["template"]["metadata"]
    assert metadata["labels"] == {
        "team": "red",
        "tier": "front",
        "app": "isvc.translate-transformer",
        "component": "transformer",
        "serving.kserve.io/inferenceservice": "translate",
    }
    assert metadata["annotations"] == {"sidecar.istio.io/inject": "true", "note": "x"}


def test_its_service_is_at_port_80_and_selects_its_pods() -> None:
    found = made(model())
    assert found["Service"]["metadata"]["name"] == "translate-transformer"
    (port,) = found["Service"]["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (80, 8080)
    selector = found["Deployment"]["spec"]["selector"]["matchLabels"]
    assert found["Service"]["spec"]["selector"] == selector
    ports = [{"containerPort": 9000, "name": "http"}, {"containerPort": 9001}]
    several = made(model(containers=[{"image": "m", "ports": ports}]))["Service"]["spec"]["ports"]
    assert [(each["port"], each["targetPort"]) for each in several] == [(80, 9000), (9001, 9001)]


@pytest.mark.parametrize(
    ("fields", "bounds", "metric"),
    [
        ({}, (1, 1), ("cpu", 80)),
        ({"minReplicas": 0, "maxReplicas": 3, "scaleTarget": 50}, (1, 3), ("cpu", 50)),
        ({"minReplicas": 4, "maxReplicas": 2}, (4, 4), ("cpu", 80)),
        ({"scaleMetric": "memory", "scaleTarget": 60}, (1, 1), ("memory", 60)),
        ({"scaleMetric": "concurrency", "scaleTarget": 5}, (1, 1), None),
    ],
)
def test_the_autoscaler_is_kserve_s(
    fields: dict[str, Any], bounds: tuple[int, int], metric: tuple[str, int] | None
) -> None:
    spec = made(model(**fields))["HorizontalPodAutoscaler"]["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == bounds
    assert spec["scaleTargetRef"]["name"] == "translate-transformer"
    found = spec.get("metrics", [{}])[0].get("resource")
    assert metric == (found and (found["name"], found["target"]["averageUtilization"]))


def test_another_autoscaler_is_left_to_the_user() -> None:
    document = objects.service()
    document["metadata"]["annotations"]["serving.kserve.io/autoscalerClass"] = "external"
    document["spec"]["transformer"] = {"containers": [{"image": "mine:1"}]}
    assert made(read_service(document)).keys() == {"Deployment", "Service"}


def test_storage_is_left_to_kserve_s_webhook_for_pods() -> None:
    env = [{"name": "STORAGE_URI", "value": "s3://explainers/a"}]
    found = made(model(containers=[{"image": "m", "env": env}]))["Deployment"]
    key = "internal.serving.kserve.io/storage-initializer-sourceuri"
    assert found["spec"]["template"]["metadata"]["annotations"][key] == "s3://explainers/a"


@pytest.mark.parametrize(
    ("kind", "version"),
    [("InferenceService", "serving.kserve.io/v1beta1"), ("Model", "pilotlight.io/v1alpha1")],
)
def test_all_objects_go_with_the_model(kind: str, version: str) -> None:
    found = model(kind=kind)
    every = [
        *component_objects(found, "transformer", GATEWAY),
        *removed_objects(found, "transformer"),
        predictor_service(found, GATEWAY),
    ]
    for each in every:
        (owner,) = each["metadata"]["ownerReferences"]
        assert (owner["apiVersion"], owner["kind"], owner["uid"]) == (version, kind, found.uid)
        assert each["metadata"]["namespace"] == "team"
    labels = every[0]["metadata"]["labels"]
    assert ("serving.kserve.io/inferenceservice" in labels) is (kind == "InferenceService")


def test_the_predictor_is_another_name_of_the_gateway_with_its_port() -> None:
    found = model()
    assert predictor_service(found, "http://gateway.example:8080/x")["spec"] == {
        "type": "ExternalName",
        "externalName": "gateway.example",
    }
    pod = made(found, "http://gateway.example:8080/x")["Deployment"]["spec"]["template"]["spec"]
    assert "translate-predictor.team:8080" in pod["containers"][0]["args"]


def test_a_change_of_the_policy_changes_none_of_them() -> None:
    document = objects.service()
    document["spec"]["transformer"] = {"containers": [{"image": "mine:1"}]}
    before = made(read_service(document))
    document["metadata"]["annotations"]["pilotlight.io/deadline"] = "9s"
    assert made(read_service(document)) == before
