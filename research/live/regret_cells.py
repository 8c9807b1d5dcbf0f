"""The experiment regret's live cells: one trace under each policy, with every pod empty before."""

import asyncio
import time
from dataclasses import replace
from typing import Final

from pilotlight.platform.settings import PlatformSettings
from pilotlight.sample_models import BUCKET
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelSpec, RoutingPolicy, Tier
from research.demo import TimedResponse
from research.demo.session import LiveSession
from research.experiments.regret.live_slice import AROUND_S, SAMPLE, LiveCell, LiveRun, request_seed

REGRET_LINK_BYTES_PER_S: Final = 60e6
"""Slow, so that downloads need little CPU."""
_MEMORY_TIMEOUT_S: Final = 30.0
_TEXT: Final = "The quick brown fox jumps over the lazy dog"
_WORK: Final = f"preprocess={AROUND_S},postprocess={AROUND_S}"
_MEASURES: Final = (
    "infer", "share", "preprocess", "postprocess", "network", "assets",
    *(f"load:{tier}" for tier in Tier),
)  # fmt: skip
_ROOM: Final = 1.4
"""Memory per place over the size of the weights: one more model does not fit."""


def regret_settings(settings: PlatformSettings, cell: LiveCell) -> PlatformSettings:
    folder = settings.objects / BUCKET / SAMPLE
    model_bytes = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    memory_bytes = round((cell.places - 1 + _ROOM) * model_bytes)
    return replace(
        settings,
        pods=cell.pods,
        pod={**settings.pod, "slots": cell.slots, "memory_bytes": memory_bytes},
    )


async def replay_cell(session: LiveSession, cell: LiveCell, policy: RoutingPolicy) -> LiveRun:
    """Send the cell's requests, open loop, to models that are cold everywhere."""
    cluster, specs = session.platform.cluster, {each.name.name: each for each in cell.specs()}
    for spec in specs.values():
        await session.make_cold(spec)
    await cluster.wait_until(
        lambda: all(pod.free_bytes == pod.memory_bytes for pod in cluster.state.pods.values()),
        timeout_s=_MEMORY_TIMEOUT_S,
        what="all pods report free memory",
    )
    known_s = {spec.key: _known_s(cluster.state, spec.key) for spec in specs.values()}
    start_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for number, (at_s, model) in enumerate(cell.requests()):
            await asyncio.sleep(start_s + at_s - time.perf_counter())
            tasks.append(group.create_task(_predict(session, specs[model], policy, number)))
    await session.wait_idle()
    return LiveRun(policy, tuple(task.result() for task in tasks), known_s)


def _known_s(state: ClusterState, key: str) -> dict[str, float]:
    """The registry's estimates of a model."""
    found = {measure: state.measured(key).get(measure) for measure in _MEASURES}
    return {measure: each.seconds for measure, each in found.items() if each is not None}


async def _predict(
    session: LiveSession, spec: ModelSpec, policy: RoutingPolicy, number: int
) -> TimedResponse:
    headers = {
        "x-pilotlight-policy": str(policy),
        "x-pilotlight-seed": str(request_seed(number)),
        "x-pilotlight-simulate": _WORK,
    }
    return await session.predict(spec, _TEXT, headers)
