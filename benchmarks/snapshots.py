"""`python -m benchmarks.snapshots`: Redis CPU time when a thousand pods reconnect at once.

A real Redis with a filled pool; processes with many registry clients each, which connect, subscribe
and take a snapshot as pods do, all at the same moment, while another client changes the pool. The
clients read a stored snapshot but do not unpack it, which is their own CPU time alone: 1,000 of
them on two cores would take so long that they no longer reconnect at once. Every change is pushed
to all clients, whatever snapshots cost: compare with `--changes 0`.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final

import redis

from benchmarks.machine import machine_facts, save
from load.worker_processes import end_with_parent
from registry.domain.cluster import Snapshot
from registry.domain.model import ModelName, ModelSpec, Tier
from registry.domain.pod import PodInfo
from registry.errors import RegistryUnavailable
from registry.redis import watch
from registry.redis.client import Registry
from registry.redis.redis_connection import RedisConnection
from registry.redis.server_address import find_server
from registry.redis.transactions import Transactions
from registry.redis.watch import RECONNECT
from tests import servers
from tests.registry.redis.timeouts import long_timeouts

_TIMEOUT_S: Final = 300.0
_LEASE_S: Final = 7200.0


@dataclass(frozen=True, slots=True)
class Measured:
    """From the moment that all clients connect until each has the state."""

    is_shared: bool
    changes_per_s: float
    redis_cpu_s: float
    seconds: float
    assembled: int
    """Snapshots that Redis assembled; the others were read."""
    failed: int
    """Attempts that got no snapshot in time, and were repeated."""
    megabytes: float
    """Sent by Redis."""
    changes: int
    """Of the pool meanwhile."""


def main() -> None:
    options = _options()
    machine = machine_facts()
    print(f"{machine.line()}\n", flush=True)
    with tempfile.TemporaryDirectory() as folder, servers.redis_server(Path(folder)) as server:
        asyncio.run(_fill(server.url, options.pods, options.models))
        rows = []
        for per_s in options.changes:
            rows.append(_measure(server.url, options, per_s))
            print(asdict(rows[-1]), flush=True)
    save("snapshots", machine, vars(options), [asdict(row) for row in rows])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.snapshots", description=__doc__)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--models", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument(
        "--changes", type=float, nargs="*", default=[0.0, 5.0], help="of the pool, per second"
    )
    parser.add_argument("--alone", action="store_true", help="each client takes its own snapshot")
    return parser.parse_args()


async def _fill(url: str, pods: int, models: int) -> None:
    registry = Registry(url, "default")
    specs = [ModelSpec(ModelName("default", f"m-{n}"), f"s3://models/{n}") for n in range(models)]
    await registry.put_models(specs)

    async def join(number: int) -> None:
        name = f"pod-{number:04d}"
        info = PodInfo(name, f"{name}:8080", name, slots=4, memory_bytes=10**12)
        epoch = await registry.register_pod(info, lease_ttl_s=_LEASE_S)
        await asyncio.gather(
            *(
                registry.set_tier(name, epoch, spec.key, Tier.DEVICE, 10**6)
                for spec in specs[number::pods]
            )
        )

    await asyncio.gather(*(join(number) for number in range(pods)))
    await registry.close()


def _measure(url: str, options: argparse.Namespace, per_s: float) -> Measured:
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(options.processes + 1)
    results: Queue[tuple[int, int]] = context.Queue()
    each = options.clients // options.processes
    processes = [
        context.Process(target=_run_clients, args=(url, each, not options.alone, start, results))
        for _ in range(options.processes)
    ]
    for process in processes:
        process.start()
    with redis.Redis.from_url(url) as client:
        start.wait(_TIMEOUT_S)
        before, began_s = _usage(client), time.monotonic()
        changes = asyncio.run(_change(url, per_s, results, options.processes))
        after, ended_s = _usage(client), time.monotonic()
    found = [results.get(timeout=_TIMEOUT_S) for _ in processes]
    for process in processes:
        process.join()
    return Measured(
        is_shared=not options.alone,
        changes_per_s=per_s,
        redis_cpu_s=after[0] - before[0],
        seconds=ended_s - began_s,
        assembled=sum(taken for taken, _ in found),
        failed=sum(failed for _, failed in found),
        megabytes=(after[1] - before[1]) / 1e6,
        changes=changes,
    )


async def _change(url: str, per_s: float, results: Queue[Any], processes: int) -> int:
    """Declare a model `per_s` times a second until all processes have a result."""
    registry = Registry(url, "default")
    changes = 0
    while results.qsize() < processes:
        await asyncio.sleep(1 / per_s if per_s else 0.1)
        if per_s:
            changes += 1
            spec = ModelSpec(ModelName("default", "m-0"), f"s3://models/changed-{changes}")
            with suppress(RegistryUnavailable):  # Redis is busy with the snapshots
                await registry.put_models([spec])
    await registry.close()
    return changes


def _run_clients(
    url: str, count: int, is_shared: bool, start: Barrier, results: Queue[tuple[int, int]]
) -> None:
    end_with_parent()
    watch._unpack = _leave_packed

    async def run() -> tuple[int, int]:
        await asyncio.to_thread(start.wait, _TIMEOUT_S)
        done = await asyncio.gather(*(_client(url, is_shared) for _ in range(count)))
        return sum(taken for taken, _ in done), sum(failed for _, failed in done)

    with long_timeouts():  # Redis shares two cores with its clients
        results.put(asyncio.run(run()))


def _leave_packed(packed: bytes) -> Snapshot:
    return Snapshot((packed,))


async def _client(url: str, is_shared: bool) -> tuple[bool, int]:
    """Whether Redis assembled this client's snapshot, and attempts that failed before."""
    failed = 0
    registry = Registry(url, "default")
    transactions = registry.transactions
    while True:
        address = await find_server(url, transactions.prefix)
        pushes = await RedisConnection.open(address, on_message=lambda _: None)
        try:
            await pushes.call("SUBSCRIBE", f"{transactions.prefix}news")
            read = watch.take_shared_snapshot if is_shared else Transactions.snapshot
            versions, _, _ = await read(transactions)
        except RegistryUnavailable:
            failed += 1
            pushes.close()
            await asyncio.sleep(RECONNECT.pause_s(failed) * random.uniform(0.5, 1.5))
        else:
            break
    pushes.close()
    await registry.close()
    return versions.changes > 0, failed


def _usage(client: redis.Redis) -> tuple[float, int]:
    """CPU seconds and bytes sent so far."""
    facts: Any = client.info()
    cpu_s = float(facts["used_cpu_user"]) + float(facts["used_cpu_sys"])
    return cpu_s, int(facts["total_net_output_bytes"])


if __name__ == "__main__":
    main()
