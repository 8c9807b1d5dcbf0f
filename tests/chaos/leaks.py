"""What must not be left once a healed platform has no request: each check names what it found."""

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Final

import httpx
import redis

from pilotlight.state_dir import StateDir
from registry.errors import RegistryUnavailable
from tests.chaos.models import model_name
from tests.chaos.platform import PlatformUnderTest
from tests.chaos.processes import Process, listening_ports
from tests.chaos.scrape import MetricMissing, present_metric

RESERVATION_TTL_S: Final = 15.0
LIMIT_S: Final = RESERVATION_TTL_S + 15.0
_POLL_S: Final = 0.5
_MORE_DESCRIPTORS: Final = 24
"""Idle connections between the processes come and go."""
_IDLE: Final = {
    "gateway": ("pilotlight_gateway_reservations", "pilotlight_gateway_waiting_requests"),
    "pod": ("pilotlight_pod_slots_used", "pilotlight_device_waiting"),
}


@dataclass
class Baseline:
    """Ports, descriptors and processes of the platform before the first fault, by role."""

    ports: Counter[str] = field(default_factory=Counter)
    descriptors: dict[str, int] = field(default_factory=dict)
    processes: Counter[str] = field(default_factory=Counter)


def read_baseline(platform: PlatformUnderTest) -> Baseline:
    processes = platform.processes()
    found = Baseline(processes=Counter(each.role for each in processes))
    for role, members in _by_role(processes).items():
        found.ports[role] = len(listening_ports({each.pid for each in members}))
        found.descriptors[role] = max(each.descriptors() for each in members)
    return found


async def find_leaks(platform: PlatformUnderTest, baseline: Baseline) -> list[str]:
    """What is left after `LIMIT_S` without requests; empty as soon as nothing is."""
    leaks: list[str] = []
    for _ in range(int(LIMIT_S / _POLL_S)):
        leaks = await _look(platform, baseline)
        if not leaks:
            break
        await asyncio.sleep(_POLL_S)
    return leaks


async def _look(platform: PlatformUnderTest, baseline: Baseline) -> list[str]:
    try:
        return [
            *await _slots(platform),
            *await _requests(platform),
            *_keys(platform),
            *_processes(platform, baseline),
            *_files(platform),
        ]
    except (
        RegistryUnavailable,
        httpx.HTTPError,
        redis.RedisError,
        MetricMissing,
        OSError,
    ) as error:
        return [f"not healed: {error!r}"]


async def _slots(platform: PlatformUnderTest) -> list[str]:
    state = await platform.state()
    return [
        f"{pod.name}: {pod.slots_used} slots, {pod.ongoing} inferences reserved in Redis"
        for pod in state.pods.values()
        if pod.slots_used or pod.ongoing
    ]


async def _requests(platform: PlatformUnderTest) -> list[str]:
    urls = [("gateway", f"127.0.0.1:{platform.port}")]
    urls += [("pod", pod.address) for pod in (await platform.state()).pods.values()]
    found = []
    async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
        for role, address in urls:
            text = (await client.get(f"http://{address}/metrics")).text
            found += [
                f"{role} at {address}: {name} is {value:g}"
                for name in _IDLE[role]
                if (value := present_metric(text, name))
            ]
    return found


def _keys(platform: PlatformUnderTest) -> list[str]:
    """Reservations, claims and residencies of pods that are gone, and expired claims."""
    with platform.redis.connect() as client:
        prefix = "pilotlight:{default}:"
        alive = set(client.zrange(f"{prefix}leases", 0, -1))
        found = []
        for kind in ("slots", "ongoing", "residency", "pod"):
            for key in client.scan_iter(f"{prefix}{kind}:*", count=1000):
                pod = key.removeprefix(f"{prefix}{kind}:")
                if pod not in alive:
                    found.append(f"Redis has {kind} of {pod}, which is gone")
        for key in client.scan_iter(f"{prefix}claims:*", count=1000):
            found += [f"claim of {key} at {pod}" for pod in client.hkeys(key)]
        if count := client.zcard(f"{prefix}unstarted"):
            found.append(f"{count} claims not started")
    return found


def _processes(platform: PlatformUnderTest, baseline: Baseline) -> list[str]:
    processes = platform.processes()
    known = {each.pid: each for each in processes}
    found = [
        f"{each.role} {each.pid} is no descendant of the supervisor"
        for each in processes
        if each.role != "supervisor" and each.parent not in known
    ]
    for role, members in _by_role(processes).items():
        if len(members) > baseline.processes[role]:
            found.append(f"{len(members)} processes instead of {baseline.processes[role]}: {role}")
        ports = listening_ports({each.pid for each in members})
        if len(ports) > baseline.ports[role]:
            found.append(f"{role}: {len(ports)} ports instead of {baseline.ports[role]}")
        limit = baseline.descriptors.get(role, 0) + _MORE_DESCRIPTORS
        found += [
            f"{role} {each.pid}: {number} descriptors, limit {limit}"
            for each in members
            if (number := each.descriptors()) > limit
        ]
        found += [
            f"{role} {each.pid} holds {path}"
            for each in members
            for path in each.open_deleted_files()
            if path.startswith(str(platform.folder))
        ]
    return found


def _files(platform: PlatformUnderTest) -> list[str]:
    """Temporary files, partial downloads, and models in memory of nodes that do not exist."""
    found = [f"temporary file {path}" for path in platform.temporary.iterdir()]
    home = StateDir(platform.home)
    declared = {f"default~{model_name(number)}" for number in range(platform.models)}
    found += [  # those of a declared model continue where a pod that was killed left off
        f"partial file {path}"
        for path in home.nodes.rglob("*.part*")
        if not any(each.name.partition("@")[0] in declared for each in path.parents)
    ]
    nodes = {f"node-{index}" for index in range(platform.pods)}
    for folder in (home.nodes, home.memory):
        if folder.is_dir():
            found += [f"{each}" for each in folder.iterdir() if each.name not in nodes]
    return found


async def left_after_stop(platform: PlatformUnderTest) -> list[str]:
    """Processes, memory and files that a stopped platform left; processes have a second to end."""
    for _ in range(10):
        if not platform.processes():
            break
        await asyncio.sleep(0.1)
    home = StateDir(platform.home)
    found = [f"process {each.role} {each.pid}" for each in platform.processes()]
    found += [str(path) for path in (home.memory, home.nodes, home.state_file) if path.exists()]
    found += [f"temporary file {path}" for path in platform.temporary.iterdir()]
    return found


def _by_role(processes: list[Process]) -> dict[str, list[Process]]:
    found = defaultdict(list)
    for each in processes:
        found[each.role].append(each)
    return found
