"""Routing policies of other distributions: found by name, and kept from harming the gateway."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.errors import BadRequest
from gateway.http.headers import read_headers
from gateway.routing.decision import Decision, Reason, Reject, SendTo, Wait
from gateway.routing.routing_policies import routing_policy
from registry.inference_service.annotations import parse_annotations
from tests.gateway.cluster_states import NOW_S, PodSketch, cluster, request
from tests.plug_ins import install, path_of_plug_ins

_NAMES = (
    "empties", "exits", "interrupts", "last-pod", "nowhere", "nothing", "raises", "removes",
)  # fmt: skip
_MODULE = """
from gateway.routing.decision import Reason, SendTo
from registry.domain.pod_state import LoadMode


def _to(name):
    return SendTo(name, name, LoadMode.LOAD, Reason.MODEL_OBLIVIOUS)


def last_pod(request, cluster, now_s):
    return _to(max(cluster.pods))


def nowhere(request, cluster, now_s):
    return _to("pod-z")


def nothing(request, cluster, now_s):
    return None


def exits(request, cluster, now_s):
    raise SystemExit(3)


def raises(request, cluster, now_s):
    raise ValueError("no idea")


def interrupts(request, cluster, now_s):
    raise KeyboardInterrupt


def empties(request, cluster, now_s):
    cluster.warm(request.key).clear()


def removes(request, cluster, now_s):
    cluster.pods.clear()
    raise ValueError("no pods")
"""


@pytest.fixture(autouse=True)
def _mine(tmp_path: Path) -> Iterator[None]:
    entries = {name: f"mine:{name.replace('-', '_')}" for name in _NAMES}
    install(tmp_path, "mine", "pilotlight.routing", entries, _MODULE)
    with path_of_plug_ins(tmp_path):
        yield


def _decide(name: str, *pods: PodSketch) -> Decision:
    return routing_policy(name)(request(), cluster(*pods), NOW_S)


def test_an_annotation_and_a_header_may_name_it() -> None:
    assert parse_annotations({"pilotlight.io/policy": "last-pod"}).policy.routing == "last-pod"
    assert read_headers([(b"x-pilotlight-policy", b"last-pod")]).policy == "last-pod"


def test_a_name_that_is_not_installed_is_refused_with_those_that_are() -> None:
    [problem] = parse_annotations({"pilotlight.io/policy": "first-pod"}).problems
    assert "must be one of auto, " in problem
    assert "last-pod" in problem
    assert problem.endswith("was 'first-pod'")
    with pytest.raises(BadRequest, match=r"must be one of auto, .*last-pod.*, was 'first-pod'"):
        read_headers([(b"x-pilotlight-policy", b"first-pod")])


def test_it_decides() -> None:
    decision = _decide("last-pod", PodSketch("pod-a"), PodSketch("pod-b"))
    assert isinstance(decision, SendTo)
    assert decision.predict == "pod-b"


def test_a_pod_without_a_free_slot_gets_no_more() -> None:
    decision = _decide("last-pod", PodSketch("pod-a"), PodSketch("pod-b", busy=1))
    assert decision == Wait(Reason.QUEUE_NO_SLOT)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("exits", "routing policy exits raised SystemExit: 3 (mine.py, line 23)"),
        ("raises", "routing policy raises raised ValueError: no idea (mine.py, line 27)"),
        ("interrupts", "routing policy interrupts raised KeyboardInterrupt:  (mine.py, line 31)"),
        (
            "empties",
            "routing policy empties raised AttributeError: 'tuple' object has no attribute 'clear'"
            " (mine.py, line 35)",
        ),
        ("removes", "routing policy removes raised ValueError: no pods (mine.py, line 40)"),
        ("nothing", "routing policy nothing must return SendTo, Wait or Reject, returned None"),
        ("nowhere", "routing policy nowhere chose 'pod-z' and 'pod-z': there is no such pod"),
    ],
)
def test_an_error_of_a_policy_rejects_the_request(name: str, message: str) -> None:
    assert _decide(name, PodSketch("pod-a")) == Reject(Reason.POLICY_FAILED, message)


def test_a_gateway_that_has_not_installed_it_rejects_the_request() -> None:
    decision = _decide("first-pod", PodSketch("pod-a"))
    assert isinstance(decision, Reject)
    assert decision.reason is Reason.POLICY_FAILED
    assert decision.message.startswith("'first-pod' is not installed here: known are auto, ")
