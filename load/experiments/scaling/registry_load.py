"""Reservations by several gateway processes against one real Redis: what each costs it.

Each process is a gateway without its HTTP server: registry client, watched copy, reservations.
Its clients reserve a slot at a warm pod and give it back at once, over and over. Redis runs scripts
on one core: one second over the CPU time of a reservation is the rate at which it is full.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import queue
import random
import threading
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import redis

from gateway.dispatch.reservations import Reservation, Reservations
from gateway.routing.decision import Reason, SendTo
from load.experiments.errors import ExperimentError
from load.worker_processes import end_with_parent
from registry.domain.model import ModelName, ModelSpec, Tier
from registry.domain.pod import PodInfo
from registry.domain.reservation import LoadMode
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Barrier

PATIENCE_S: Final = 120.0
_LEASE_S: Final = 3600.0
_SLOTS: Final = 64


@dataclass(frozen=True, slots=True)
class LoadTask:
    """One measurement: so many gateways with so many clients each, for so long."""

    gateways: int
    clients: int
    pods: int
    models: int
    seconds: float
    seed: int


@dataclass(frozen=True, slots=True)
class RegistryLoadResult:
    """What it came to; `_us` is CPU time per granted reservation and its release."""

    granted: int
    refused: int
    seconds: float
    redis_us: float
    gateway_us: float

    @property
    def per_s(self) -> float:
        """Granted per second of wall time, on this machine with what else ran on it."""
        return self.granted / self.seconds

    @property
    def limit_per_s(self) -> float:
        """Rate at which one core of Redis is full."""
        return 1e6 / self.redis_us


def load_registry(url: str, task: LoadTask) -> RegistryLoadResult:
    """Fill an empty Redis with a pool and measure. Raises ExperimentError."""
    pool = uuid.uuid4().hex[:8]
    try:
        asyncio.run(_fill(url, pool, task))
    except RegistryUnavailable as error:
        raise ExperimentError(f"cannot fill the registry at {url}: {error}") from error
    context = multiprocessing.get_context("spawn")
    begin = context.Barrier(task.gateways + 1)
    told: Queue[tuple[int, int, float] | str] = context.Queue()
    gateways = [
        context.Process(target=_gateway, args=(url, pool, task, number, begin, told), daemon=True)
        for number in range(task.gateways)
    ]
    for each in gateways:
        each.start()
    try:
        return _measure(url, task, begin, told)
    finally:
        for each in gateways:
            each.join(timeout=10.0)
            if each.is_alive():
                each.kill()
                each.join()


def _measure(url: str, task: LoadTask, begin: Barrier, told: Queue[Any]) -> RegistryLoadResult:
    with redis.Redis.from_url(url) as client:
        try:
            begin.wait(PATIENCE_S)
            before_s, began_s = _redis_cpu_s(client), time.monotonic()
            counts = [told.get(timeout=task.seconds + PATIENCE_S) for _ in range(task.gateways)]
            after_s, ended_s = _redis_cpu_s(client), time.monotonic()
        except queue.Empty as error:
            raise ExperimentError(f"a gateway process said nothing for {PATIENCE_S:g} s") from error
        except threading.BrokenBarrierError as error:
            raise ExperimentError(f"gateway processes did not start: {_said(told)}") from error
    if failed := [each for each in counts if isinstance(each, str)]:
        raise ExperimentError(f"a gateway process failed: {failed[0]}")
    granted = sum(each[0] for each in counts)
    if granted == 0:
        raise ExperimentError(f"no reservation was granted within {task.seconds:g} s")
    return RegistryLoadResult(
        granted=granted,
        refused=sum(each[1] for each in counts),
        seconds=ended_s - began_s,
        redis_us=1e6 * (after_s - before_s) / granted,
        gateway_us=1e6 * sum(each[2] for each in counts) / granted,
    )


def _said(told: Queue[Any]) -> str:
    try:
        return str(told.get(timeout=1.0))
    except queue.Empty:
        return f"nothing was heard of them for {PATIENCE_S:g} s"


def _redis_cpu_s(client: redis.Redis) -> float:
    told: Any = client.info("cpu")
    return float(told["used_cpu_user"]) + float(told["used_cpu_sys"])


async def _fill(url: str, pool: str, task: LoadTask) -> None:
    registry = Registry(url, pool)
    try:
        specs = [_spec(number) for number in range(task.models)]
        await registry.put_models(specs)
        for number in range(task.pods):
            name = _pod(number)
            info = PodInfo(name, f"{name}:8080", name, slots=_SLOTS, memory_bytes=10**12)
            epoch = await registry.register_pod(info, lease_ttl_s=_LEASE_S)
            mine = specs[number % task.models :: task.pods]
            await asyncio.gather(
                *(registry.set_tier(name, epoch, spec.key, Tier.DEVICE, 10**6) for spec in mine)
            )
    finally:
        await registry.close()


def _spec(number: int) -> ModelSpec:
    return ModelSpec(ModelName("default", f"model-{number}"), f"s3://models/{number}")


def _pod(number: int) -> str:
    return f"pod-{number:04d}"


# In a gateway's process


def _gateway(
    url: str, pool: str, task: LoadTask, number: int, begin: Barrier, told: Queue[Any]
) -> None:
    end_with_parent()
    try:
        told.put(asyncio.run(_play(url, pool, task, number, begin)))
    except Exception as error:
        begin.abort()
        told.put(repr(error))


async def _play(
    url: str, pool: str, task: LoadTask, number: int, begin: Barrier
) -> tuple[int, int, float]:
    registry = Registry(url, pool)
    watch = ClusterWatch(registry)
    reservations = Reservations(registry, watch.state, f"gateway-{number}")
    counts = [0, 0]
    following = asyncio.create_task(watch.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            await watch.wait_synced()
        keys = [record.spec.key for record in watch.state.models.values()]
        places = [(pod, key) for key in keys for pod in watch.state.holders(key)]
        await asyncio.to_thread(begin.wait, PATIENCE_S)
        began_cpu_s, end_s = time.process_time(), time.monotonic() + task.seconds
        async with asyncio.TaskGroup() as clients:
            for client in range(task.clients):
                rng = random.Random(f"{task.seed}:{number}:{client}")
                clients.create_task(_client(reservations, places, rng, end_s, counts))
        return counts[0], counts[1], time.process_time() - began_cpu_s
    finally:
        following.cancel()
        await registry.close()


async def _client(
    reservations: Reservations,
    places: Sequence[tuple[str, str]],
    rng: random.Random,
    end_s: float,
    counts: list[int],
) -> None:
    while time.monotonic() < end_s:
        pod, key = rng.choice(places)
        taken = await reservations.reserve(SendTo(pod, pod, LoadMode.WARM, Reason.WARM), key)
        if isinstance(taken, Reservation):
            counts[0] += 1
            reservations.release(taken)
        else:
            counts[1] += 1
