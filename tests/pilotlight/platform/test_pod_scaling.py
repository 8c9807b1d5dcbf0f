"""The pods that start and drain for a wanted number."""

from pilotlight.platform.pod_processes import pods_to_retire, pods_to_start
from registry.domain.records import PodShape, WantedPods

NAMES = ["pod-0", "pod-1", "pod-2", "pod-3"]


def test_named_pods_are_retired_first_then_from_the_end() -> None:
    wanted = WantedPods((PodShape(1),), ("pod-0", "pod-9"))
    assert pods_to_retire({"pod-0", "pod-1", "pod-2"}, wanted, NAMES) == ["pod-0", "pod-2"]


def test_only_surplus_pods_are_retired() -> None:
    wanted = WantedPods((PodShape(2),), ("pod-0", "pod-1", "pod-2"))
    assert pods_to_retire({"pod-0", "pod-1", "pod-2"}, wanted, NAMES) == ["pod-0"]
    assert pods_to_retire({"pod-0"}, wanted, NAMES) == []


def test_pods_start_in_order_and_pods_still_ending_last() -> None:
    starting = pods_to_start(
        {"pod-1"}, WantedPods((PodShape(3),)), NAMES, busy={"pod-0"}, cached_bytes={}
    )
    assert starting == ["pod-2", "pod-3"]
    assert (
        pods_to_start({"pod-1"}, WantedPods((PodShape(1),)), NAMES, busy=set(), cached_bytes={})
        == []
    )


def test_only_existing_pod_names_are_started() -> None:
    assert (
        pods_to_start(set(), WantedPods((PodShape(9),)), NAMES, busy=set(), cached_bytes={})
        == NAMES
    )


def test_the_pod_starts_first_whose_disk_has_what_requests_wait_for() -> None:
    wanted, cached = WantedPods((PodShape(2),)), {"pod-0": 9, "pod-2": 5, "pod-3": 7}
    assert pods_to_start(set(), wanted, NAMES, busy={"pod-0"}, cached_bytes=cached) == [
        "pod-3",
        "pod-2",
    ]
