"""Random interleavings of gateways, pods and deaths against a real Redis, and what always holds."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pytest
import redis.asyncio

from registry.client import ClaimScope, Registry
from registry.errors import ClaimLost, LeaseLost
from registry.model import LoadFailure, ModelName, ModelSpec, Tier
from registry.pod import PodPhase, PodReport
from registry.reservation import Granted, LoadMode, Refusal
from registry.watch import ClusterWatch
from tests.registry.actors import Pod, eventually, release, reserve
from tests.registry.test_watch import agrees, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.servers import RedisServer

pytestmark = pytest.mark.anyio

PODS = [f"pod-{letter}" for letter in "abcd"]
SPECS = [
    ModelSpec(ModelName("default", name), f"s3://bucket/{name}/{generation}")
    for name in ("m1", "m2")
    for generation in (1, 2)
]
KEYS = [spec.key for spec in SPECS]
SLOTS = 2
LEASE_S = 0.12
SHORT_S = 0.05
_pools = itertools.count(1)


@dataclass
class Held:
    """A reservation that a gateway was given."""

    id: str
    entry: str
    predict: str


@dataclass
class Load:
    """A load that some pod, perhaps a dead one, believes to be its own."""

    pod: Pod
    key: str
    token: int


@dataclass
class World:
    """Everybody who takes part, and what they believe."""

    rng: random.Random
    gateways: list[Registry]
    prefix: str
    direct: redis.asyncio.Redis
    """Past the registry, with answers as text."""
    is_concurrent: bool = False
    pods: dict[str, Pod] = field(default_factory=dict)
    ghosts: list[Pod] = field(default_factory=list)
    """Processes that stalled, and may wake up after their lease or their successor's start."""
    held: dict[int, list[Held]] = field(default_factory=lambda: defaultdict(list))
    loads: list[Load] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    # What gateways do

    async def route(self) -> None:
        number = self.rng.randrange(len(self.gateways))
        gateway, id_ = self.gateways[number], f"g{number}:{next(self.numbers)}"
        entry = self.rng.choice(PODS)
        predict = self.rng.choice([entry, self.rng.choice(PODS)])
        key = self.rng.choice(KEYS)
        mode = self.rng.choice([LoadMode.WARM, LoadMode.JOIN, LoadMode.LOAD, LoadMode.LOAD])
        copies = self.rng.choice([-1, 0, 0, 1])
        result = await reserve(
            gateway,
            entry,
            predict,
            key=key,
            mode=mode,
            max_other_copies=copies,
            target_ongoing=self.rng.choice([0, 3]),
            ttl_s=self.rng.choice([SHORT_S, 60.0]),
            id_=id_,
        )
        self.done[result.value if isinstance(result, Refusal) else "granted"] += 1
        if not isinstance(result, Granted):
            return
        self.held[number].append(Held(id_, entry, predict))
        pod = self.pods.get(predict)
        if result.load_token:
            self.done["claimed by a gateway"] += 1
            if copies == 0:
                await self._alone(key, predict)
        if result.load_token and pod is not None:
            self.loads.append(Load(pod, key, result.load_token))

    async def _alone(self, key: str, pod: str) -> None:
        if not self.is_concurrent:
            others = await self.others_with(key, pod)
            assert not others, f"a second load of {key} at {pod} beside {others}"

    async def give_back(self) -> None:
        number = self.rng.randrange(len(self.gateways))
        if self.held[number]:
            held = self.held[number].pop(self.rng.randrange(len(self.held[number])))
            if self.rng.random() < 0.5:
                await self.gateways[number].end_inference(held.predict, held.id)
            await release(self.gateways[number], held.id, held.entry, held.predict)

    async def renew(self) -> None:
        number = self.rng.randrange(len(self.gateways))
        for held in self.held[number]:
            self.gateways[number].renew(held.id, entry=held.entry, predict=held.predict, ttl_s=60.0)

    async def forget(self) -> None:
        """A gateway dies and starts again: nobody gives back what it held."""
        self.held.pop(self.rng.randrange(len(self.gateways)), None)

    async def declare(self) -> None:
        gateway = self.rng.choice(self.gateways)
        if self.rng.random() < 0.2:
            await gateway.delete_models([self.rng.choice(SPECS).name])
        else:
            await gateway.put_models([self.rng.choice(SPECS)])

    # What pods do

    async def join(self) -> None:
        name = self.rng.choice(PODS)
        if name in self.pods:
            self.ghosts.append(self.pods[name])
        lease_s = self.rng.choice([LEASE_S, 60.0, 60.0, 60.0])
        registry = self.rng.choice(self.gateways)
        self.pods[name] = await Pod.join(registry, name, slots=SLOTS, lease_ttl_s=lease_s)

    async def leave(self) -> None:
        if self.pods:
            pod = self.pods.pop(self.rng.choice(sorted(self.pods)))
            self.ghosts.append(pod)
            if self.rng.random() < 0.7:
                await pod.leave()

    async def drain(self) -> None:
        with contextlib.suppress(LeaseLost):
            for pod in self._some_pod():
                phase = self.rng.choice([PodPhase.DRAINING, PodPhase.READY])
                await pod.registry.set_phase(pod.name, pod.epoch, phase)

    async def beat(self) -> None:
        for pod in self._some_pod(even_ghosts=True):
            with contextlib.suppress(LeaseLost):
                await pod.beat(PodReport({"device": self.rng.randrange(3)}))

    async def claim(self) -> None:
        for pod in self._some_pod(even_ghosts=True):
            key, scope = self.rng.choice(KEYS), self.rng.choice(list(ClaimScope))
            with contextlib.suppress(LeaseLost):
                token = await pod.claim(key, scope, ttl_s=self.rng.choice([SHORT_S, 60.0]))
                if token is not None:
                    self.done["claimed by a pod"] += 1
                    self.loads.append(Load(pod, key, token))
                    if scope is ClaimScope.POOL:
                        await self._alone(key, pod.name)

    async def go_on_loading(self) -> None:
        if not self.loads:
            return
        load = self.loads.pop(self.rng.randrange(len(self.loads)))
        step = self.rng.choice(["start", "finish", "finish", "fail"])
        rightful = await self._stands(load)
        try:
            if step == "start":
                await load.pod.start(load.token, load.key, self.rng.choice([Tier.DISK, Tier.HOST]))
                self.loads.append(load)
            elif step == "finish":
                await load.pod.finish(load.token, load.key)
            else:
                failure = LoadFailure(load.key, "ModelLoadFailed", "x", 1, 0.0)
                await load.pod.registry.fail_load(
                    load.pod.name, load.pod.epoch, load.key, load.token, failure
                )
        except (ClaimLost, LeaseLost):
            self.done["fenced off"] += 1
        else:
            self.done[step] += 1
            assert rightful, f"{step} by a load that was fenced off: {load}"

    async def _stands(self, load: Load) -> bool:
        """Whether Redis holds the load's token for the pod's own epoch, seen from outside."""
        claim = await self.direct.hget(f"{self.prefix}claims:{load.key}", load.pod.name)
        epoch = await self.direct.hget(f"{self.prefix}pod:{load.pod.name}", "epoch")
        return (
            claim is not None
            and str(claim).partition(":")[0] == str(load.token)
            and epoch == str(load.pod.epoch)
        )

    async def evict(self) -> None:
        for pod in self._some_pod(even_ghosts=True):
            with contextlib.suppress(LeaseLost):
                await pod.set_tier(self.rng.choice([Tier.DISK, Tier.REMOTE]), self.rng.choice(KEYS))

    async def sweep(self) -> None:
        await self.rng.choice(self.gateways).transactions.sync()

    def _some_pod(self, *, even_ghosts: bool = False) -> list[Pod]:
        if even_ghosts and self.ghosts and self.rng.random() < 0.2:
            return [self.rng.choice(self.ghosts)]
        return [self.pods[self.rng.choice(sorted(self.pods))]] if self.pods else []

    # What always holds

    async def check(self) -> None:
        """Look at Redis itself, past our own scripts' account of it."""
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
        leases = set(next(answers))
        resident: dict[str, set[str]] = {}
        for name in PODS:
            taken, keys, reservations, info = (next(answers) for _ in range(4))
            resident[name] = set(keys)
            assert taken <= SLOTS, f"{taken} reservations at {name}"
            if name not in leases:
                assert not any((keys, reservations, info)), f"{name} is gone, its state is not"
        for key in KEYS:
            claimed, warm = set(next(answers)), set(next(answers))
            assert claimed | warm <= leases, "held by a pod that is gone"
            assert not claimed & warm, "claimed where it is warm"
            assert all(key in resident[name] for name in claimed | warm)

    async def others_with(self, key: str, pod: str) -> set[str]:
        """Other pods that take requests and hold the model or have a claim that is not over."""
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

    async def _now_ms(self) -> int:
        seconds, micros = await self.direct.time()
        return int(seconds) * 1000 + int(micros) // 1000

    async def settle(self) -> None:
        """Let everything that is short run out, so that the end can be compared."""

        async def is_quiet() -> bool:
            now_ms = await self._now_ms()
            later = now_ms + 1000
            sets = ["leases", "unstarted", *(f"slots:{name}" for name in PODS)]
            sets += [f"ongoing:{name}" for name in PODS]
            pending = [
                await self.direct.zcount(f"{self.prefix}{name}", now_ms, later) for name in sets
            ]
            return not any(pending)

        await eventually(is_quiet, what="short leases over")


STEPS: list[tuple[Callable[[World], Awaitable[None]], int]] = [
    (World.route, 30), (World.give_back, 14), (World.renew, 2), (World.forget, 1),
    (World.join, 9), (World.leave, 3), (World.drain, 2), (World.beat, 6), (World.claim, 8),
    (World.go_on_loading, 18), (World.evict, 5), (World.declare, 4), (World.sweep, 3),
]  # fmt: skip


@contextlib.asynccontextmanager
async def living(
    server: RedisServer, seed: int, *, gateways: int, is_concurrent: bool
) -> AsyncIterator[World]:
    """A world with some pods and a watch per gateway; at its end all copies must agree."""
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
        prefix = clients[0].transactions.prefix
        world = World(random.Random(seed), clients, prefix, direct, is_concurrent=is_concurrent)
        for name in PODS[:3]:
            world.pods[name] = await Pod.join(clients[0], name, slots=SLOTS)
        yield world
        await world.settle()
        await world.check()
        for watch in watches:
            await eventually(partial(agrees, watch, clients[0]), what="copies agree")
        for outcome in ("granted", "cold", "finish"):
            assert world.done[outcome], f"no {outcome} among {world.done}"


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_happens_in_turn_the_invariants_hold(server: RedisServer, seed: int) -> None:
    steps, weights = zip(*STEPS, strict=True)
    async with living(server, seed, gateways=2, is_concurrent=False) as world:
        for _ in range(250):
            await world.rng.choices(steps, weights)[0](world)
            await world.check()


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_at_once_the_invariants_hold(server: RedisServer, seed: int) -> None:
    steps, weights = zip(*STEPS, strict=True)
    async with living(server, 1000 + seed, gateways=3, is_concurrent=True) as world:
        for _ in range(40):
            batch = world.rng.choices(steps, weights, k=12)
            await asyncio.gather(*(step(world) for step in batch))
            await world.check()
