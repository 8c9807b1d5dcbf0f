from typing import Any

from controller.objects import ClusterObjects, ObjectEvent
from controller.resources import PodObject, read_graph_object, read_pod, read_service
from registry.domain.model import ModelName
from tests.controller.objects import service
from tests.controller.test_graph_objects import graph

NAME = ModelName("team", "translate")
POOL_LABEL = {"pilotlight.io/pool": "default"}


def pod(name: str = "pod-1", **metadata: Any) -> PodObject:
    return read_pod(
        {
            "metadata": {
                "namespace": "pilotlight",
                "name": name,
                "uid": name,
                "labels": POOL_LABEL,
                **metadata,
            },
            "status": {"phase": "Running"},
        }
    )


def test_the_newest_version_wins() -> None:
    objects = ClusterObjects()
    objects.update(ObjectEvent(read_service(service(resourceVersion="10")), is_removed=False))
    objects.update(ObjectEvent(read_service(service(resourceVersion="9")), is_removed=False))
    assert objects.services[NAME].resource_version == "10"


def test_ignores_the_removal_of_an_older_object_of_the_same_name() -> None:
    objects = ClusterObjects()
    objects.update(ObjectEvent(read_service(service(uid="new")), is_removed=False))
    objects.update(ObjectEvent(read_service(service(uid="old")), is_removed=True))
    assert NAME in objects.services


def test_services_of_kserve_alone_are_left_out() -> None:
    objects = ClusterObjects()
    other = service(annotations={}, resourceVersion="8")
    objects.update(ObjectEvent(read_service(other), is_removed=False))
    assert not objects.services
    assert not objects.changed


def test_a_model_that_names_no_pool_any_more_is_kept_until_it_is_unloaded() -> None:
    objects = ClusterObjects()
    objects.update(ObjectEvent(read_service(service()), is_removed=False))
    held = service(annotations={}, resourceVersion="8", finalizers=["pilotlight.io/unload"])
    objects.update(ObjectEvent(read_service(held), is_removed=False))
    assert objects.services[NAME].has_finalizer
    free = service(annotations={}, resourceVersion="9")
    objects.update(ObjectEvent(read_service(free), is_removed=False))
    assert not objects.services


def test_adding_or_removing_a_pool_marks_its_models_changed() -> None:
    objects = ClusterObjects()
    objects.update(ObjectEvent(read_service(service()), is_removed=False))
    objects.changed.clear()
    pool = read_service(service(name="pool", uid="p", annotations={}, labels=POOL_LABEL))
    objects.update(ObjectEvent(pool, is_removed=False))
    assert NAME in objects.changed
    assert objects.has_pool("default")
    objects.changed.clear()
    objects.update(ObjectEvent(pool, is_removed=True))
    assert NAME in objects.changed
    assert not objects.has_pool("default")


def test_a_full_list_removes_missing_objects() -> None:
    objects = ClusterObjects()
    objects.update(ObjectEvent(read_service(service()), is_removed=False))
    objects.update(ObjectEvent(pod(), is_removed=False))
    objects.replace([], [pod("pod-2")], objects.uids())
    assert objects.services == {}
    assert [each.name for each in objects.removed_pods] == ["pod-1"]
    assert [(each.name, each.pool) for each in objects.pods.values()] == [("pod-2", "default")]
    assert objects.is_complete


def test_what_came_while_the_cluster_was_listed_stays() -> None:
    objects = ClusterObjects()
    known = objects.uids()
    for came in (read_service(service()), pod(), read_graph_object(graph(uid="uid-2"))):
        objects.update(ObjectEvent(came, is_removed=False))
    objects.replace([], [], known)
    objects.graphs.replace_all([], known)
    assert objects.uids() == {"uid-1", "pod-1", "uid-2"}
    assert objects.removed_pods == []
    objects.graphs.replace_all([], objects.uids())
    assert objects.graphs == {}


def test_what_left_while_the_cluster_was_listed_does_not_come_back() -> None:
    objects, left = (
        ClusterObjects(),
        (read_service(service()), pod(), read_graph_object(graph(uid="uid-2"))),
    )
    for each in left:
        objects.update(ObjectEvent(each, is_removed=False))
    known = objects.uids()
    for each in left:
        objects.update(ObjectEvent(each, is_removed=True))
    objects.replace([left[0]], [left[1]], known)
    objects.graphs.replace_all([left[2]], known)
    assert objects.uids() == set()


def test_a_pod_marked_for_deletion_is_ending() -> None:
    assert not pod().is_ending
    assert pod(deletionTimestamp="2026-01-01T00:00:00Z").is_ending
