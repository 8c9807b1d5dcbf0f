"""What pods measure of a model on request: batch sizes, shares of accelerators, and neighbours."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx

from autoscaler.placement import profile_fits
from pilotlight.commands.target import PlatformTarget
from pilotlight.errors import InvalidInput, NotFound, RequestFailed
from pilotlight.output import Output, format_bytes
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName
from registry.domain.pod import PairFactor, ShareFactor, best_rows, mean_busy_pct, slots_at_start
from registry.domain.pod_state import PodState
from registry.domain.records import decode_profile

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
    """The batch sizes of a profile as rows of a table."""
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


_NOT_STORED = {"is_stored": 0}
_LOOP_REPEATS = 100


def parse_shares(text: str | None) -> list[int]:
    """Shares in %, ascending, each once; raises InvalidInput with all mistakes."""
    parts = [each.strip() for each in text.split(",")] if text is not None else []
    wrong = [each for each in parts if not (each.isdecimal() and 1 <= int(each) <= 100)]
    if wrong:
        shown = ", ".join(map(repr, wrong))
        raise InvalidInput([f"--shares must be percentages of 1 to 100, such as 50,100: {shown}"])
    return sorted({int(each) for each in parts})


async def profile_for_placement(
    target: PlatformTarget,
    output: Output,
    name: ModelName,
    pod: PodState,
    plan: Mapping[str, int],
    *,
    shares: Sequence[int],
    pairs: bool,
) -> dict[str, Any]:
    """Measure the model on its whole accelerator, with shares of it, and beside other models.

    On a CPU the accelerator is as many cores as an inference has threads. The result is stored, and
    returned as JSON. Raises RequestFailed.
    """
    state = await target.cluster()
    others = _neighbours(state, name, pod) if pairs else []
    beside = _pod_beside(state, pod) if pairs else pod
    is_gpu = bool(pod.info.accelerator.uuid)  # its share is that of the process
    plan = {**plan, **_NOT_STORED, "share_pct": 0 if is_gpu else 100}
    document = await measure_profile(target, pod, name, plan)
    alone = _latencies(document)
    found_shares: list[ShareFactor] = []
    for share in [each for each in shares if each < 100]:
        output.note(f"{name} with a share of {share} %")
        limited = {**plan, "share_pct": share}
        answer = await measure_profile(target, pod, name, limited)
        measured, had = _latencies(answer), float(answer["share_pct"])
        if had in {100.0, *(each.share_pct for each in found_shares)}:
            continue  # rounded up to whole cores
        found_shares += [
            ShareFactor(had, rows, max(1.0, measured[rows] / alone[rows]))
            for rows in alone.keys() & measured.keys()
        ]
    found_pairs = []
    for other, rows in others:
        output.note(f"{name} beside {other} on {beside.name}")
        async with _busy(target, beside, other, {**plan, "most_rows": rows}):
            measured = _latencies(await measure_profile(target, pod, name, plan))
        sizes = alone.keys() & measured.keys()
        factor = sum(measured[each] for each in sizes) / sum(alone[each] for each in sizes)
        found_pairs.append(PairFactor(str(other), max(1.0, factor)))
    whole = replace(
        decode_profile(json.dumps(document)),
        shares=tuple(sorted(found_shares)),
        pairs=tuple(sorted(found_pairs)),
    )
    used = _used_by_neighbours(state, others, pod)
    fits = {name: each.fit(whole, used) for name, each in profile_fits().items()}
    profile = replace(whole, fits={name: fit for name, fit in fits.items() if fit is not None})
    async with target.registry() as registry:
        if not await registry.put_profile(profile):
            raise RequestFailed(f"{name} was changed or deleted meanwhile; profile it again")
    return document | {
        "shares": [
            {"share_pct": each.share_pct, "rows": each.rows, "factor": each.factor}
            for each in profile.shares
        ],
        "pairs": [{"neighbour": each.neighbour, "factor": each.factor} for each in profile.pairs],
        **fits,
    }


def _used_by_neighbours(
    state: ClusterState, others: Sequence[tuple[ModelName, int]], pod: PodState
) -> dict[str, float]:
    """By neighbour: what its batches, up to those that it ran, keep busy of the accelerator."""
    return {
        str(other): mean_busy_pct([each for each in profile.points if each.rows <= rows])
        for other, rows in others
        for profile in state.profiles_of(state.models[other].serving.key)
        if profile.product == pod.kind.product
    }


def _latencies(document: Mapping[str, Any]) -> dict[int, float]:
    return {point["rows"]: point["latency_s"] for point in document["points"]}


def _neighbours(state: ClusterState, name: ModelName, pod: PodState) -> list[tuple[ModelName, int]]:
    """The other models with a profile of the pod's accelerator, and their best batches."""
    found = [
        (other, best_rows(profile.points))
        for other, record in sorted(state.models.items())
        for profile in state.profiles_of(record.serving.key)
        if other != name and profile.product == pod.kind.product
    ]
    if not found:
        raise RequestFailed(
            f"--pairs: no other model has a profile on {pod.kind.product}; profile the models that "
            f"may be neighbours of {name} first"
        )
    return found


def _pod_beside(state: ClusterState, pod: PodState) -> PodState:
    """Another pod on the accelerator: of a GPU by its UUID, of a CPU on the same machine."""
    uuid = pod.info.accelerator.uuid

    def is_beside(other: PodState) -> bool:
        if uuid:
            return other.info.accelerator.uuid == uuid
        return other.address.rpartition(":")[0] == pod.address.rpartition(":")[0]

    for other in sorted(state.pods.values(), key=lambda each: (each.slots_busy, each.name)):
        if other.name != pod.name and other.is_accepting and is_beside(other):
            return other
    raise RequestFailed(f"--pairs needs two pods on one accelerator; {pod.name} is alone on its")


@contextlib.asynccontextmanager
async def _busy(
    target: PlatformTarget, pod: PodState, name: ModelName, plan: Mapping[str, int]
) -> AsyncIterator[None]:
    """The pod computes batches of the model all the time; raises RequestFailed if it cannot."""
    await measure_profile(target, pod, name, {**plan, "repeats": 1})  # loads the model

    async def compute() -> None:
        while True:
            await measure_profile(target, pod, name, {**plan, "repeats": _LOOP_REPEATS})

    task = asyncio.create_task(compute())
    try:
        yield
        if task.done():
            task.result()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, RequestFailed):
            await task
