from typing import Any

from controller.objects import ClusterObjects, Key
from controller.resources import Kind, PodObject, read_pod, read_service
from registry.domain.model import ModelName
from tests.controller.objects import service

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
    objects.update(read_service(service(resourceVersion="10")))
    objects.update(read_service(service(resourceVersion="9")))
    assert objects.services[NAME].resource_version == "10"


def test_ignores_the_removal_of_an_older_object_of_the_same_name() -> None:
    objects = ClusterObjects()
    objects.update(read_service(service(uid="new")))
    objects.update(read_service(service(uid="old")), is_removed=True)
    assert NAME in objects.services


def test_services_of_kserve_alone_are_left_out() -> None:
    objects, reported = ClusterObjects(), list[Key]()
    objects.on_change = reported.append
    objects.update(read_service(service(annotations={}, resourceVersion="8")))
    assert not objects.services
    assert not reported


def test_a_model_that_names_no_pool_any_more_is_kept_until_it_is_unloaded() -> None:
    objects = ClusterObjects()
    objects.update(read_service(service()))
    held = service(annotations={}, resourceVersion="8", finalizers=["pilotlight.io/unload"])
    objects.update(read_service(held))
    assert objects.services[NAME].has_finalizer
    free = service(annotations={}, resourceVersion="9")
    objects.update(read_service(free))
    assert not objects.services


def test_adding_or_removing_a_pool_reports_its_models() -> None:
    objects, reported = ClusterObjects(), list[Key]()
    objects.update(read_service(service()))
    objects.on_change = reported.append
    pool = read_service(service(name="pool", uid="p", annotations={}, labels=POOL_LABEL))
    objects.update(pool)
    assert Key(Kind.SERVICE, NAME) in reported
    assert objects.has_pool("default")
    reported.clear()
    objects.update(pool, is_removed=True)
    assert Key(Kind.SERVICE, NAME) in reported
    assert not objects.has_pool("default")


def test_a_full_list_removes_missing_objects() -> None:
    objects = ClusterObjects()
    objects.update(read_service(service()))
    objects.update(pod())
    objects.replace(Kind.SERVICE, [])
    objects.replace(Kind.POD, [pod("pod-2")])
    assert objects.services == {}
    assert [each.name for each in objects.removed_pods] == ["pod-1"]
    assert [(each.name, each.pool) for each in objects.pods.values()] == [("pod-2", "default")]


def test_a_list_of_a_namespace_leaves_others_alone() -> None:
    objects = ClusterObjects()
    objects.update(pod())
    objects.replace(Kind.POD, [], "others")
    assert objects.pods
    objects.replace(Kind.POD, [], "pilotlight")
    assert not objects.pods


def test_a_new_object_of_the_same_name_ends_the_old_one() -> None:
    objects = ClusterObjects()
    objects.update(pod())
    objects.replace(Kind.POD, [pod(uid="other")])
    assert [each.uid for each in objects.removed_pods] == ["pod-1"]
    assert [each.uid for each in objects.pods.values()] == ["other"]


def test_the_reply_to_a_write_does_not_bring_back_a_removed_object() -> None:
    objects, found = ClusterObjects(), read_service(service())
    objects.update(found)
    objects.update(found, is_removed=True)
    objects.update_by_reply(found)
    assert not objects.services


def test_a_pod_marked_for_deletion_is_ending() -> None:
    assert not pod().is_ending
    assert pod(deletionTimestamp="2026-01-01T00:00:00Z").is_ending
