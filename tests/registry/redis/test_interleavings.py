"""Random steps of gateways and pods against a real Redis, after which all copies agree."""

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

import pytest
import redis.asyncio

from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from tests.registry.redis.clients import Pod, agrees, eventually, running
from tests.registry.redis.interleavings import (
    KEYS,
    PODS,
    SLOTS,
    STEPS,
    Load,
    RandomRun,
    RegistryContents,
)
from tests.servers import RedisServer

_pools = itertools.count(1)


@dataclass
class RedisInspector:
    """Reads the keys in Redis directly."""

    direct: redis.asyncio.Redis
    """Decodes replies to text."""
    prefix: str

    async def contents(self) -> RegistryContents:
        now_ms = await self._now_ms()
        async with self.direct.pipeline(transaction=True) as pipe:
            pipe.zrange(f"{self.prefix}leases", 0, -1)
            for name in PODS:
                pipe.zcount(f"{self.prefix}slots:{name}", f"({now_ms}", "+inf")
                pipe.hkeys(f"{self.prefix}residency:{name}")
                pipe.exists(*(f"{self.prefix}{kind}:{name}" for kind in ("slots", "ongoing")))
                pipe.exists(f"{self.prefix}pod:{name}")
            for key in KEYS:
                pipe.hkeys(f"{self.prefix}claims:{key}")
                pipe.smembers(f"{self.prefix}warm:{key}")
            answers = iter(await pipe.execute())
        found = RegistryContents(set(next(answers)), {}, set(), {}, {}, {})
        for name in PODS:
            taken, keys, reservations, info = (next(answers) for _ in range(4))
            found.taken[name], found.resident[name] = taken, set(keys)
            if any((keys, reservations, info)):
                found.leftovers.add(name)
        for key in KEYS:
            found.claimed[key], found.warm[key] = set(next(answers)), set(next(answers))
        return found

    async def holds_claim(self, load: Load) -> bool:
        claim = await self.direct.hget(f"{self.prefix}claims:{load.key}", load.pod.name)
        epoch = await self.direct.hget(f"{self.prefix}pod:{load.pod.name}", "epoch")
        return (
            claim is not None
            and str(claim).partition(":")[0] == str(load.token)
            and epoch == str(load.pod.epoch)
        )

    async def other_copies(self, key: str, pod: str) -> set[str]:
        now_ms = await self._now_ms()
        found = {str(name) for name in await self.direct.smembers(f"{self.prefix}warm:{key}")}
        for name, claim in (await self.direct.hgetall(f"{self.prefix}claims:{key}")).items():
            expiry = int(str(claim).partition(":")[2])
            if expiry == 0 or expiry > now_ms:
                found.add(str(name))
        serving = set()
        for name in found - {pod}:
            lease = await self.direct.zscore(f"{self.prefix}leases", name)
            phase = await self.direct.hget(f"{self.prefix}pod:{name}", "phase")
            if lease is not None and lease > now_ms and phase == "ready":
                serving.add(name)
        return serving

    async def sync(self, gateway: Registry) -> None:
        await gateway.transactions.sync()

    async def _now_ms(self) -> int:
        seconds, micros = await self.direct.time()
        return int(seconds) * 1000 + int(micros) // 1000

    async def wait_for_expiries(self) -> None:
        """Return when nothing expires within a second, so that copies can be compared."""

        async def is_quiet() -> bool:
            now_ms = await self._now_ms()
            later = now_ms + 1000
            sets = ["leases", "unstarted", *(f"slots:{name}" for name in PODS)]
            sets += [f"ongoing:{name}" for name in PODS]
            pending = [
                await self.direct.zcount(f"{self.prefix}{name}", now_ms, later) for name in sets
            ]
            return not any(pending)

        await eventually(is_quiet, what="end of short leases")


@contextlib.asynccontextmanager
async def random_run(
    server: RedisServer, seed: int, *, gateways: int, is_concurrent: bool
) -> AsyncIterator[RandomRun]:
    """A run with some pods and a watch per gateway; at its end all copies must agree."""
    async with AsyncExitStack() as stack:
        pool = f"interleaving-{next(_pools)}"
        clients: list[Registry] = []
        watches: list[ClusterWatch] = []
        for _ in range(gateways):
            clients.append(await Registry.connect(server.url, pool))
            stack.push_async_callback(clients[-1].close)
            watches.append(await stack.enter_async_context(running(ClusterWatch(clients[-1]))))
        direct = redis.asyncio.Redis.from_url(server.url, decode_responses=True)
        stack.push_async_callback(direct.aclose)
        inspector = RedisInspector(direct, clients[0].transactions.prefix)
        run = RandomRun(random.Random(seed), clients, inspector, is_concurrent=is_concurrent)
        for name in PODS[:3]:
            run.pods[name] = await Pod.join(clients[0], name, slots=SLOTS)
        yield run
        await inspector.wait_for_expiries()
        await run.check()
        for watch in watches:
            await eventually(partial(agrees, watch, clients[0]), what="copies agree")
        run.check_coverage()


@pytest.mark.parametrize("seed", range(6))
async def test_invariants_hold_for_random_sequences(server: RedisServer, seed: int) -> None:
    steps, weights = zip(*STEPS, strict=True)
    async with random_run(server, seed, gateways=2, is_concurrent=False) as run:
        for _ in range(250):
            await run.rng.choices(steps, weights)[0](run)
            await run.check()


@pytest.mark.parametrize("seed", range(4))
async def test_invariants_hold_for_random_concurrent_steps(server: RedisServer, seed: int) -> None:
    steps, weights = zip(*STEPS, strict=True)
    async with random_run(server, 1000 + seed, gateways=3, is_concurrent=True) as run:
        for _ in range(40):
            batch = run.rng.choices(steps, weights, k=12)
            await asyncio.gather(*(step(run) for step in batch))
            await run.check()
