"""Two pods on one device: by turns, as the driver shares it, and with shares of MPS.

A pod here is what a pod does between its queue and its results, in a process of its own; HTTP and
Python's work for it would hide the device. On a CPU in place of a GPU a share is a core.
"""

import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.gpu.mps import mps_clients, mps_daemon
from benchmarks.gpu.sharing_pod import BurstRequest, PodBurst, PodOptions, WarmPod
from benchmarks.quantiles import rotated
from common.child_process import Child, Command, python_environment, python_module, start
from pilotlight.errors import StartFailed
from pilotlight.platform.processes import last_lines

ALONE: Final = "one pod alone"
TURNS: Final = "two pods, time sharing"
SHARES: Final = "two pods, shares of 50 %"
WAYS: Final = (ALONE, TURNS, SHARES)
_SHARE_PCT: Final = 50.0
_BEGIN_DELAY_S: Final = 0.2
_STOP_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class SharingPlan:
    """How much is measured, and with which model."""

    folder: Path
    clients: int = 32
    """Of each pod."""
    rounds: int = 2
    """Each with new processes, and the ways in another order."""
    bursts: int = 3
    seconds: float = 3.0
    limit_s: float = 420.0
    """Of all; what is not measured by then is named."""
    ways: tuple[str, ...] = WAYS


@dataclass(frozen=True, slots=True)
class WayBurst:
    """One burst of all pods of a way at once."""

    way: str
    pods: list[PodBurst]


@dataclass(frozen=True, slots=True)
class Sharing:
    bursts: list[WayBurst]
    seen: dict[str, str]
    """By way: what its processes saw of the device."""
    problems: dict[str, str]
    """By way: why it was not measured, or not to its end."""


def measure_sharing(device: str, plan: SharingPlan) -> Sharing:
    """`device`: cuda or cpu."""
    return asyncio.run(_measure(device, plan))


async def _measure(device: str, plan: SharingPlan) -> Sharing:
    found = Sharing([], {}, {})
    until_s = time.monotonic() + plan.limit_s
    for number in range(plan.rounds):
        for way in rotated(plan.ways, number):
            if way in found.problems:
                continue
            try:
                async with asyncio.timeout(until_s - time.monotonic()):
                    await _measure_way(way, device, plan, found)
            except TimeoutError:
                found.problems[way] = f"not done within the {plan.limit_s:g} s of all ways"
            except StartFailed as error:
                found.problems[way] = str(error)
    return found


async def _measure_way(way: str, device: str, plan: SharingPlan, found: Sharing) -> None:
    async with AsyncExitStack() as stack:
        has_mps = way == SHARES and device == "cuda"
        env = await stack.enter_async_context(mps_daemon()) if has_mps else dict(os.environ)
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sharing-")))
        pods = [
            await stack.enter_async_context(_started(options, env, logs / f"{number}.log"))
            for number, options in enumerate(pod_options(way, device, plan))
        ]
        warm = [WarmPod(**each) for each in await _answers(pods)]
        found.seen[way] = " + ".join(str(pod.cores) for pod in warm)
        if has_mps:
            found.seen[way] += f", {await mps_clients(env)} connected to MPS"
        for _ in range(plan.bursts):
            asked = BurstRequest(time.monotonic() + _BEGIN_DELAY_S, plan.seconds)
            for pod in pods:
                pod.ask(asked)
            bursts = [PodBurst(**each) for each in await _answers(pods)]
            found.bursts.append(WayBurst(way, bursts))


def pod_options(way: str, device: str, plan: SharingPlan) -> list[PodOptions]:
    """Of each pod."""
    folder = str(plan.folder)
    count = 1 if way == ALONE else 2
    if way != SHARES:
        return [PodOptions(folder, device, plan.clients)] * count
    cores = sorted(os.sched_getaffinity(0)) if device == "cpu" else []
    return [
        PodOptions(
            folder,
            device,
            plan.clients,
            share_pct=_SHARE_PCT,
            cores=str(cores[number % len(cores)]) if cores else "",
        )
        for number in range(count)
    ]


@dataclass(frozen=True, slots=True)
class _PodProcess:
    """Answers each request, and its own start, with a message."""

    child: Child
    log: Path

    def ask(self, burst: BurstRequest) -> None:
        self.child.send(asdict(burst))

    async def answer(self) -> dict[str, Any]:
        """Raises StartFailed if the process ends instead."""
        found = await self.child.receive()
        if found is None:
            status = await self.child.wait()
            raise StartFailed(f"a pod ended with status {status}: {last_lines(self.log)}")
        return found[0]


async def _answers(pods: Sequence[_PodProcess]) -> list[dict[str, Any]]:
    return await asyncio.gather(*(pod.answer() for pod in pods))


@asynccontextmanager
async def _started(
    options: PodOptions, env: Mapping[str, str], log: Path
) -> AsyncIterator[_PodProcess]:
    words = [*python_module("benchmarks.gpu.sharing_pod"), json.dumps(asdict(options))]
    child = await start(Command("pod", words, python_environment(env), log), is_connected=True)
    try:
        yield _PodProcess(child, log)
    finally:
        await child.end(grace_s=_STOP_TIMEOUT_S)
