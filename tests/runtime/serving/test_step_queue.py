"""The pod's step queue: bounded, beside its slots, and shared by namespaces."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from runtime.errors import SlotsFull, StepQueueFull
from runtime.inference_request import RequestHead, parse_request_head
from runtime.serving.in_flight import PLACES, InFlightRequests, StepQueue
from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import metric, post
from tests.runtime.serving.test_step_tensors import doubling, features, kept_output

__all__ = ["doubling"]
STEP = {"x-pilotlight-step-queue": "1"}


def head(name: str, *, is_step: bool) -> RequestHead:
    return parse_request_head(name, STEP if is_step else {})


async def test_steps_and_requests_are_bounded_apart() -> None:
    requests = InFlightRequests("pod", slots=1, step_queue=StepQueue(2))
    with ExitStack() as stack:
        for name in ("a~m", "b~m"):
            stack.enter_context(requests.admit(head(name, is_step=True)))
        with pytest.raises(StepQueueFull, match="it has 2 steps"):
            requests.check_admission(head("c~m", is_step=True))
        stack.enter_context(requests.admit(head("c~m", is_step=False)))
        with pytest.raises(SlotsFull):
            requests.check_admission(head("c~m", is_step=False))
    with requests.admit(head("a~m", is_step=True)):
        requests.check_admission(head("b~m", is_step=True))


def test_a_namespace_leaves_a_quarter_to_others() -> None:
    queue = StepQueue(8)
    queue.add("a", 6)
    with pytest.raises(StepQueueFull, match="namespace a has 6 of 8 steps"):
        queue.check("a")
    queue.check("b")
    queue.add("a", -1)
    queue.check("a")


def infer(pod: servers.Pod, entry: dict[str, Any], **headers: str) -> httpx.Response:
    return post(f"{pod.url}/v2/models/default~double/infer", {"inputs": [entry]}, **headers)


@pytest.mark.slow
def test_a_step_whose_input_does_not_come_holds_no_slot(cluster: Cluster, doubling: Path) -> None:
    cluster.declare("double", doubling)
    keeper, pod = cluster.pod("keeper"), cluster.pod("pod", slots=1)
    entry = kept_output(keeper)
    step = {"x_pilotlight_run": "run-1", "x_pilotlight_step_queue": "1"}
    most = PLACES * 3 // 4  # of one namespace
    with ThreadPoolExecutor(most) as threads:
        os.kill(keeper.pid, signal.SIGSTOP)
        try:
            waiting = [threads.submit(infer, pod, entry, **step) for _ in range(most)]
            servers.wait_until(
                lambda: metric(pod.url, "pilotlight_pod_steps_queued") == most, what="steps wait"
            )
            assert infer(pod, features()).status_code == 200
            refused = infer(pod, entry, **step)
            assert not any(each.done() for each in waiting)
        finally:
            os.kill(keeper.pid, signal.SIGCONT)
        assert [each.result().status_code for each in waiting] == [200] * most
    assert refused.status_code == 429
    assert refused.headers["x-pilotlight-not-executed"] == "step-queue"
    assert int(refused.headers["retry-after"]) >= 1
    assert "in the pod's step queue" in refused.json()["error"]
    assert metric(pod.url, "pilotlight_pod_steps_queued") == 0
