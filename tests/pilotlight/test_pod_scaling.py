"""Which pods of this machine start and drain for a wanted number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pilotlight.platform.pod_scaling import pods_to_retire, pods_to_start
from registry.domain.action_log import WantedPods

if TYPE_CHECKING:
    from tests.pilotlight.conftest import Cli

NAMES = ["pod-0", "pod-1", "pod-2", "pod-3"]


def test_those_that_were_named_go_first_then_from_the_end() -> None:
    wanted = WantedPods(1, ("pod-0", "pod-9"))
    assert pods_to_retire({"pod-0", "pod-1", "pod-2"}, wanted, NAMES) == ["pod-0", "pod-2"]


def test_no_more_go_than_are_too_many() -> None:
    wanted = WantedPods(2, ("pod-0", "pod-1", "pod-2"))
    assert pods_to_retire({"pod-0", "pod-1", "pod-2"}, wanted, NAMES) == ["pod-0"]
    assert pods_to_retire({"pod-0"}, wanted, NAMES) == []


def test_pods_start_from_the_front_those_still_ending_last() -> None:
    starting = pods_to_start({"pod-1"}, WantedPods(3), NAMES, busy={"pod-0"})
    assert starting == ["pod-2", "pod-3"]
    assert pods_to_start({"pod-1"}, WantedPods(1), NAMES, busy=set()) == []


def test_no_more_start_than_there_may_be() -> None:
    assert pods_to_start(set(), WantedPods(9), NAMES, busy=set()) == NAMES


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        pytest.param(
            ("--pods", "2", "--min-pods", "3"),
            "min-pods must be at most max-pods, was 3 with max-pods 2",
            id="bounds that cross",
        ),
        pytest.param(
            ("--loading", "magic"), "--loading must be one of predictive", id="no such policy"
        ),
    ],
)
def test_up_refuses_what_contradicts_itself(cli: Cli, flags: tuple[str, ...], text: str) -> None:
    ran = cli("up", *flags)
    assert ran.status == 2
    assert text in ran.err
