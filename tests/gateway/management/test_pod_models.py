"""Loads in the background: what a pod is asked, and what becomes of the answer."""

import json
from urllib.parse import urlsplit

import pytest

from common.pod_client import PodClient
from common.pod_secret import PodSecret
from gateway.management.models import ModelLoads
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName
from registry.domain.pod import PodInfo
from registry.domain.pod_state import PodState
from tests.gateway.asynchronous import run_async, running
from tests.gateway.placer_harness import eventually
from tests.gateway.telemetry.test_event_log import Receiver

MODEL = ModelName("team", "iris")


@pytest.mark.parametrize(
    ("status", "logged"), [(200, "loaded for requests"), (503, "background load refused")]
)
@run_async
async def test_a_pod_is_asked_to_load_a_model_once_at_a_time(
    caplog: pytest.LogCaptureFixture, status: int, logged: str
) -> None:
    caplog.set_level("INFO")
    pod, state = Receiver(status), ClusterState()
    async with pod.serving() as url:
        state.pods["pod-a"] = PodState(PodInfo("pod-a", urlsplit(url).netloc, "node", slots=1))
        loads = ModelLoads(PodClient(PodSecret()), state)
        for _ in range(2):
            loads.request(MODEL, "pod-a")
        async with running(loads.run):
            await eventually(lambda: logged in caplog.messages)
            assert len(pod.bodies) == 1
            loads.request(MODEL, "gone")
            loads.request(ModelName("team", "other"), "pod-a")
            await eventually(lambda: len(pod.bodies) == 2)
    assert [each["line"] for each in pod.heads] == [
        f"POST /v2/repository/models/team~{name}/load HTTP/1.1" for name in ("iris", "other")
    ]
    assert json.loads(pod.bodies[0]) == {"parameters": {"tier": "device", "max_other_copies": 0}}
