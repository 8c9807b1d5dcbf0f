"""Files as KServe's users have them: other kinds beside models, and Lists."""

from typing import Any

import pytest
import yaml

from registry.errors import InvalidModel
from registry.inference_service.documents import left_objects
from registry.inference_service.graph_reader import read_graphs
from registry.inference_service.reader import read_documents
from variants.application import read_applications


def service(name: str, **metadata: str) -> dict[str, Any]:
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": name, **metadata},
        "spec": {
            "predictor": {
                "model": {"modelFormat": {"name": "sklearn"}, "storageUri": "s3://models/iris"}
            }
        },
    }


GRAPH = {
    "apiVersion": "serving.kserve.io/v1alpha1",
    "kind": "InferenceGraph",
    "metadata": {"name": "g"},
    "spec": {"nodes": {"root": {"routerType": "Sequence", "steps": [{"serviceName": "a"}]}}},
}


def names(*documents: Any) -> list[str]:
    return [str(each.name) for each in read_documents([("x.yaml", yaml.safe_dump_all(documents))])]


def problem_of(*documents: Any) -> str:
    with pytest.raises(InvalidModel) as caught:
        read_documents([("x.yaml", yaml.safe_dump_all(documents))])
    (problem,) = caught.value.problems
    return problem


def core(kind: str, name: str = "beside", **metadata: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, **metadata}}


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("Secret", "left: Secret default/beside: on one machine `pilotlight up` reads storage"),
        ("ServiceAccount", "left: ServiceAccount default/beside: on one machine"),
        ("ConfigMap", "left: ConfigMap default/beside: only a cluster has it"),
        ("Namespace", "left: Namespace beside: a namespace exists here as soon as"),
        ("PersistentVolume", "left: PersistentVolume beside: on one machine a model's storageUri"),
        ("PersistentVolumeClaim", "left: PersistentVolumeClaim default/beside: on one machine"),
        ("ClusterRoleBinding", "left: ClusterRoleBinding beside: only a cluster has it"),
        ("ServingRuntime", "left: ServingRuntime default/beside: pods of a pool have their own"),
        ("ClusterServingRuntime", "left: ClusterServingRuntime beside: pods of a pool"),
        ("ClusterStorageContainer", "left: ClusterStorageContainer beside: pods read the storage"),
        ("LocalModelCache", "left: LocalModelCache beside: every node caches models"),
    ],
)
def test_kinds_that_declare_no_model_are_passed_over_with_a_line(kind: str, line: str) -> None:
    documents = (core(kind), service("a"))
    assert names(*documents) == ["default/a"]
    (found,) = left_objects([("x.yaml", yaml.safe_dump_all(documents))])
    assert found.startswith(line)


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("TrainedModel", "declare an InferenceService with the storageUri of its spec.model"),
        ("LLMInferenceService", "declare an InferenceService with modelFormat huggingface"),
        ("Predictor", "declare an InferenceService with its spec.modelType as modelFormat"),
        ("Deployment", "kind must be one of InferenceService, Model, InferenceApplication, Infere"),
    ],
)
def test_other_kinds_are_refused_by_their_kind_and_name(kind: str, advice: str) -> None:
    problem = problem_of(core(kind, namespace="team"), service("a"))
    assert problem.startswith(f"x.yaml (document 1): {kind} team/beside: kind must be one of")
    assert advice in problem


@pytest.mark.parametrize("document", [{}, {"kind": 5}, {"kind": "a" * 300}, {"kind": ["Secret"]}])
def test_a_document_without_a_kind_is_refused(document: dict[str, Any]) -> None:
    assert "kind must be one of InferenceService" in problem_of({"metadata": {}, **document})


def test_items_of_a_list_are_read() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}}
    items = [service("a"), GRAPH, core("Secret"), service("b", namespace="team")]
    text = yaml.safe_dump({**listed, "items": items})
    assert [str(each.name) for each in read_documents([("x", text)])] == ["default/a", "team/b"]
    assert [str(each.name) for each in read_graphs([("x", text)])] == ["default/g"]
    assert read_applications([("x", text)]) == []
    assert len(left_objects([("x", text)])) == 1


def test_items_of_a_list_of_one_kind_may_lack_it() -> None:
    item = {key: value for key, value in service("a").items() if key in ("metadata", "spec")}
    listed = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceServiceList"}
    assert names({**listed, "items": [item, service("b")]}) == ["default/a", "default/b"]


def test_a_list_without_items_declares_nothing() -> None:
    assert "holds no object" in problem_of({"apiVersion": "v1", "kind": "List", "items": []})


@pytest.mark.parametrize(
    ("items", "message"),
    [
        pytest.param({"a": 1}, "items of a List must be a list, was {'a': 1}", id="an-object"),
        pytest.param([{"kind": "List"}], "a List may not hold another list", id="lists-in-lists"),
    ],
)
def test_a_list_of_other_forms_is_a_mistake(items: Any, message: str) -> None:
    assert message in problem_of({"apiVersion": "v1", "kind": "List", "items": items})


def test_a_list_that_holds_itself_is_a_mistake() -> None:
    with pytest.raises(InvalidModel, match="may not hold another list"):
        read_documents([("x", "&a {apiVersion: v1, kind: List, items: [*a]}")])


def test_an_item_and_a_document_of_one_name_are_a_mistake() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [service("a")]}
    assert "metadata.name is declared twice" in problem_of(listed, service("a", namespace=""))


def test_a_name_that_only_a_cluster_makes_is_refused() -> None:
    declared = service("a")
    declared["metadata"] = {"generateName": "a-"}
    assert "generateName" in problem_of(declared)
