"""What pods measure of a model on request: batch sizes, shares of accelerators, and neighbours."""

from collections.abc import Iterable, Mapping
from typing import Any

import httpx

from pilotlight.commands.target import PlatformTarget
from pilotlight.errors import NotFound, RequestFailed
from pilotlight.output import format_bytes
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName
from registry.domain.pod import slots_at_start
from registry.domain.pod_state import PodState

_TIMEOUT_S = 3600.0


def choose_pod(state: ClusterState, key: str, pod: str | None) -> PodState:
    """The named pod, or the least busy one, of those that hold the model if there are any."""
    accepting = _accepting(state)
    if pod is not None and pod not in accepting:
        known = ", ".join(sorted(accepting))
        raise NotFound(f"no pod {pod} accepts requests; pods that do: {known}")
    if pod is not None:
        return accepting[pod]
    if not accepting:
        raise RequestFailed("no pod accepts requests; start pods with `pilotlight up`")
    return _least_busy(state, key, accepting.values())


def pods_by_product(state: ClusterState, key: str) -> list[PodState]:
    """As `choose_pod`, one of each accelerator product."""
    accepting = _accepting(state).values()
    return [
        _least_busy(state, key, [each for each in accepting if each.kind.product == product])
        for product in sorted({each.kind.product for each in accepting})
    ]


def _accepting(state: ClusterState) -> dict[str, PodState]:
    return {each.name: each for each in state.pods.values() if each.is_accepting}


def _least_busy(state: ClusterState, key: str, pods: Iterable[PodState]) -> PodState:
    holders = state.holders(key)
    return min(
        pods,
        key=lambda each: (
            each.name not in holders or not holders[each.name].is_warm,
            each.slots_busy,
            each.name,
        ),
    )


async def measure_profile(
    target: PlatformTarget, pod: PodState, name: ModelName, plan: Mapping[str, int]
) -> dict[str, Any]:
    """The profile as JSON, its throughputs included; raises RequestFailed."""
    path = f"/v2/models/{name.path_segment}/profile"
    response = await target.request_pod(pod, "POST", path, timeout_s=_TIMEOUT_S, json=dict(plan))
    if response.status_code != httpx.codes.OK:
        raise RequestFailed(f"pod {pod.name} returned {response.status_code}: {response.text}")
    document: dict[str, Any] = response.json()
    return document


def slots_line(state: ClusterState, pod: PodState) -> str:
    """What the profiles change for pods like this one; empty: nothing."""
    profiles = [each for known in state.profiles.values() for each in known.values()]
    accelerator = pod.info.accelerator
    slots = slots_at_start(accelerator, profiles)
    if slots == pod.slots:
        return ""
    kind = accelerator.product or "this kind"
    return (
        f"pods of {kind} that start from now on without --slots serve {slots} requests at once; "
        f"{pod.name} serves {pod.slots}"
    )


POINT_COLUMNS = ("BATCH", "LATENCY", "ITEMS/S", "MEMORY", "")


def point_rows(document: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            str(point["rows"]),
            f"{point['latency_s'] * 1000:.2f} ms",
            f"{point['rows_per_s']:.1f}",
            "-" if point["memory_bytes"] is None else format_bytes(point["memory_bytes"]),
            "best" if point["rows"] == document["best_rows"] else "",
        )
        for point in document["points"]
    ]
