"""`profile`: have a pod measure what a model costs by batch size, and show it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from pilotlight.errors import NotFound, RequestFailed
from pilotlight.quantities import format_bytes

if TYPE_CHECKING:
    from pilotlight.commands.target import PlatformTarget
    from pilotlight.output import Output
    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelName, ModelRecord
    from registry.domain.pod_state import PodState

_TIMEOUT_S = 3600.0
_REASONS = {
    "throughput": "larger batches bring no more throughput",
    "memory": "larger batches do not fit into memory",
    "size": "larger batches were not asked for",
}


async def profile(
    target: PlatformTarget,
    output: Output,
    name: ModelName,
    *,
    pod: str | None,
    plan: dict[str, int],
) -> None:
    """Profile a model at a pod (the one named, else the idlest that holds it) and print it."""
    state = await target.cluster()
    record = state.models.get(name)
    if record is None:
        known = ", ".join(sorted(map(str, state.models))) or "none"
        raise NotFound(f"not found: {name}; there are: {known}")
    chosen = _choose(state, record, pod)
    output.note(f"profiling {name} on {chosen.name}; requests to it go on meanwhile")
    document = await _ask(chosen, name, plan)
    if output.as_json:
        output.result({"pod": chosen.name, **document})
        return
    best = document["best_rows"]
    output.table(
        ("BATCH", "LATENCY", "ITEMS/S", "MEMORY", ""),
        [_row(point, is_best=point["rows"] == best) for point in document["points"]],
    )
    output.line(f"batches of up to {best}: {_REASONS.get(document['limited_by'], 'as measured')}")


def _choose(state: ClusterState, record: ModelRecord, pod: str | None) -> PodState:
    accepting = {each.name: each for each in state.pods.values() if each.is_accepting}
    if pod is not None and pod not in accepting:
        raise NotFound(f"no pod {pod} takes requests; there are: {', '.join(sorted(accepting))}")
    if pod is not None:
        return accepting[pod]
    if not accepting:
        raise RequestFailed("no pod takes requests; start some with `pilotlight up`")
    holders = state.holders(record.serving.key)
    warm = [
        each for each in accepting.values() if each.name in holders and holders[each.name].is_warm
    ]
    return min(warm or accepting.values(), key=lambda each: (each.slots_busy, each.name))


async def _ask(pod: PodState, name: ModelName, plan: dict[str, int]) -> dict[str, Any]:
    url = f"http://{pod.address}/v2/models/{name.path_segment}/profile"
    async with httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT_S) as client:
        try:
            answer = await client.post(url, json=plan)
        except httpx.HTTPError as error:
            raise RequestFailed(f"no answer from pod {pod.name} at {url}: {error!r}") from error
    if answer.status_code != httpx.codes.OK:
        raise RequestFailed(f"pod {pod.name} answered {answer.status_code}: {answer.text}")
    document: dict[str, Any] = answer.json()
    return document


def _row(point: dict[str, Any], *, is_best: bool) -> tuple[str, ...]:
    memory = point["memory_bytes"]
    return (
        str(point["rows"]),
        f"{point['latency_s'] * 1000:.2f} ms",
        f"{point['rows_per_s']:.1f}",
        "-" if memory is None else format_bytes(memory),
        "best" if is_best else "",
    )
