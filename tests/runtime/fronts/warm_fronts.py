"""Counts of a pod's fronts, and a wait until all of them infer a model themselves."""

from __future__ import annotations

from tests import servers
from tests.runtime.http import metric, post


def inferred(pod: servers.Pod) -> float:
    """Requests that fronts have sent to the device process as tensors."""
    return metric(pod.url, "pilotlight_front_requests_total", way="inferred")


def passed(pod: servers.Pod) -> float:
    """Requests that fronts have passed on, those for metrics among them."""
    return metric(pod.url, "pilotlight_front_requests_total", way="passed")


def warm(pod: servers.Pod, model: str, fronts: int, body: object = None) -> None:
    """Each request has a connection of its own, and fronts get connections in turn."""
    url = f"{pod.url}/v1/models/default~{model}:predict"

    def is_learnt() -> bool:
        before = inferred(pod)
        for _ in range(2 * fronts):
            assert post(url, body or {"instances": ["warm"]}).status_code == 200
        return inferred(pod) == before + 2 * fronts

    servers.wait_until(is_learnt, what=f"fronts infer {model}")
