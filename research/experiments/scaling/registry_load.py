"""The cost of reservations by several gateway processes on one real Redis.

Each process is a gateway without its HTTP server: registry client, watched copy, reservations. Its
clients reserve a slot on a warm pod and release it at once, repeatedly. Redis runs scripts on one
core, so it is saturated at the rate of one second over the CPU time of a reservation.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import queue
import random
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any, Final, NamedTuple

import redis

from gateway.dispatch.reservations import Placement, Reservations
from gateway.routing.decision import Reason, SendTo
from gateway.routing.route_request import IncomingRequest
from load.worker_processes import end_with_parent
from registry.domain.model import ModelName, ModelSpec, Tier
from registry.domain.pod import PodInfo
from registry.domain.pod_state import LoadMode
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from research.experiments.harness.experiment import ExperimentError

_TIMEOUT_S: Final = 120.0
_LEASE_S: Final = 3600.0
_SLOTS: Final = 64


@dataclass(frozen=True, slots=True)
class RegistryLoadTask:
    """One measurement: `gateways` processes with `clients` each, for `seconds`."""

    gateways: int
    clients: int
    pods: int
    models: int
    seconds: float
    seed: int


@dataclass(frozen=True, slots=True)
class RegistryLoadResult:
    """`redis_us`, `gateway_us`: CPU microseconds per granted reservation and its release."""

    granted: int
    refused: int
    seconds: float
    redis_us: float
    gateway_us: float

    @property
    def per_s(self) -> float:
        """Reservations per second of wall time, with gateways and Redis on the same machine."""
        return self.granted / self.seconds

    @property
    def limit_per_s(self) -> float:
        """The rate that saturates one core of Redis."""
        return 1e6 / self.redis_us


class _GatewayCounts(NamedTuple):
    granted: int
    refused: int
    cpu_s: float


def measure_registry_load(url: str, task: RegistryLoadTask) -> RegistryLoadResult:
    """Fill an empty Redis with a pool and measure. Raises ExperimentError."""
    pool = uuid.uuid4().hex[:8]
    try:
        asyncio.run(_fill(url, pool, task))
    except RegistryUnavailable as error:
        raise ExperimentError(f"cannot fill the registry at {url}: {error}") from error
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(task.gateways + 1)
    counts: Queue[_GatewayCounts | str] = context.Queue()
    gateways = [
        context.Process(
            target=_gateway_process, args=(url, pool, task, number, start, counts), daemon=True
        )
        for number in range(task.gateways)
    ]
    for each in gateways:
        each.start()
    try:
        return _measure(url, task, start, counts)
    finally:
        for each in gateways:
            each.join(timeout=10.0)
            if each.is_alive():
                each.kill()
                each.join()


def _measure(
    url: str, task: RegistryLoadTask, start: Barrier, counts: Queue[Any]
) -> RegistryLoadResult:
    with redis.Redis.from_url(url) as client:
        try:
            start.wait(_TIMEOUT_S)
            before_s, began_s = _redis_cpu_s(client), time.monotonic()
            found = [counts.get(timeout=task.seconds + _TIMEOUT_S) for _ in range(task.gateways)]
            after_s, ended_s = _redis_cpu_s(client), time.monotonic()
        except queue.Empty as error:
            raise ExperimentError(f"no result of a gateway process in {_TIMEOUT_S:g} s") from error
        except threading.BrokenBarrierError as error:
            raise ExperimentError(f"gateway processes did not start: {_reason(counts)}") from error
    if failed := [each for each in found if isinstance(each, str)]:
        raise ExperimentError(f"a gateway process failed: {failed[0]}")
    granted = sum(each.granted for each in found)
    if granted == 0:
        raise ExperimentError(f"no reservation was granted within {task.seconds:g} s")
    return RegistryLoadResult(
        granted=granted,
        refused=sum(each.refused for each in found),
        seconds=ended_s - began_s,
        redis_us=1e6 * (after_s - before_s) / granted,
        gateway_us=1e6 * sum(each.cpu_s for each in found) / granted,
    )


def _reason(counts: Queue[Any]) -> str:
    try:
        return str(counts.get(timeout=1.0))
    except queue.Empty:
        return f"no message within {_TIMEOUT_S:g} s"


def _redis_cpu_s(client: redis.Redis) -> float:
    info: Any = client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


async def _fill(url: str, pool: str, task: RegistryLoadTask) -> None:
    registry = Registry(url, pool)
    try:
        specs = [
            ModelSpec(ModelName("default", f"model-{number}"), f"s3://models/{number}")
            for number in range(task.models)
        ]
        await registry.put_models(specs)
        for number in range(task.pods):
            name = f"pod-{number:04d}"
            info = PodInfo(name, f"{name}:8080", name, slots=_SLOTS, memory_bytes=10**12)
            epoch = await registry.register_pod(info, lease_ttl_s=_LEASE_S)
            own = specs[number % task.models :: task.pods]
            await asyncio.gather(
                *(registry.set_tier(name, epoch, spec.key, Tier.DEVICE, 10**6) for spec in own)
            )
    finally:
        await registry.close()


def _gateway_process(
    url: str, pool: str, task: RegistryLoadTask, number: int, start: Barrier, counts: Queue[Any]
) -> None:
    end_with_parent()
    try:
        counts.put(asyncio.run(_run_gateway(url, pool, task, number, start)))
    except Exception as error:
        start.abort()
        counts.put(repr(error))


async def _run_gateway(
    url: str, pool: str, task: RegistryLoadTask, number: int, start: Barrier
) -> _GatewayCounts:
    registry = Registry(url, pool)
    watch = ClusterWatch(registry)
    reservations = Reservations(registry, watch.state, f"gateway-{number}")
    watching = asyncio.create_task(watch.run())
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await watch.wait_synced()
        specs = [record.spec for record in watch.state.models.values()]
        copies = [(pod, spec) for spec in specs for pod in watch.state.holders(spec.key)]
        await asyncio.to_thread(start.wait, _TIMEOUT_S)
        began_cpu_s, end_s = time.process_time(), time.monotonic() + task.seconds
        async with asyncio.TaskGroup() as group:
            clients = [
                group.create_task(
                    _reserve_repeatedly(
                        reservations, copies, random.Random(f"{task.seed}:{number}:{client}"), end_s
                    )
                )
                for client in range(task.clients)
            ]
        granted, refused = map(sum, zip(*(client.result() for client in clients), strict=True))
        return _GatewayCounts(granted, refused, time.process_time() - began_cpu_s)
    finally:
        watching.cancel()
        await registry.close()


async def _reserve_repeatedly(
    reservations: Reservations,
    copies: Sequence[tuple[str, ModelSpec]],
    rng: random.Random,
    end_s: float,
) -> tuple[int, int]:
    """Reserve and release until `end_s`; returns the numbers of granted and refused ones."""
    granted = refused = 0
    while time.monotonic() < end_s:
        pod, spec = rng.choice(copies)
        placement = Placement(IncomingRequest("", spec.name, arrival_s=0.0, draw=0.0, sequence=0))
        placement.spec = spec
        reply: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        is_granted = reservations.reserve(
            placement,
            SendTo(pod, pod, LoadMode.WARM, Reason.WARM),
            lambda _, is_granted, reply=reply: reply.set_result(is_granted),  # type: ignore[misc]
        )
        if is_granted is None:
            is_granted = await reply
        if is_granted:
            granted += 1
            reservations.release(placement)
        else:
            refused += 1
    return granted, refused
