"""Random interleavings of gateways, pods and deaths against a registry, and what always holds."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from registry.domain.model import LoadFailure, ModelName, ModelSpec, Tier
from registry.domain.pod import PodPhase, PodReport
from registry.domain.reservation import ClaimScope, Granted, LoadMode, Refusal
from registry.errors import ClaimLost, LeaseLost
from tests.registry.actors import Pod, release, reserve

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from registry.redis.client import Registry

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


@dataclass(frozen=True)
class Seen:
    """What a registry holds at one time."""

    leases: set[str]
    taken: dict[str, int]
    """Reservations that are not over, by pod."""
    leftovers: set[str]
    """Pods of which anything is kept beside the lease."""
    resident: dict[str, set[str]]
    """Keys of models, by pod."""
    claimed: dict[str, set[str]]
    """Pods, by key."""
    warm: dict[str, set[str]]
    """Pods, by key."""


class Witness(Protocol):
    """Sees what a registry holds, past its operations."""

    async def look(self) -> Seen:
        """Everything."""

    async def stands(self, load: Load) -> bool:
        """Whether the load's token is held for the pod's own epoch."""

    async def others_with(self, key: str, pod: str) -> set[str]:
        """Other pods that take requests and hold the model or have a claim that is not over."""

    async def sweep(self, gateway: Registry) -> None:
        """Have what has expired cleared away."""


@dataclass
class World:
    """Everybody who takes part, and what they believe."""

    rng: random.Random
    gateways: list[Registry]
    witness: Witness
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
            others = await self.witness.others_with(key, pod)
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
        rightful = await self.witness.stands(load)
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

    async def evict(self) -> None:
        for pod in self._some_pod(even_ghosts=True):
            with contextlib.suppress(LeaseLost):
                await pod.set_tier(self.rng.choice([Tier.DISK, Tier.REMOTE]), self.rng.choice(KEYS))

    async def sweep(self) -> None:
        await self.witness.sweep(self.rng.choice(self.gateways))

    def _some_pod(self, *, even_ghosts: bool = False) -> list[Pod]:
        if even_ghosts and self.ghosts and self.rng.random() < 0.2:
            return [self.rng.choice(self.ghosts)]
        return [self.pods[self.rng.choice(sorted(self.pods))]] if self.pods else []

    # What always holds

    async def check(self) -> None:
        """Look past the operations at what the registry holds."""
        seen = await self.witness.look()
        for name in PODS:
            assert seen.taken[name] <= SLOTS, f"{seen.taken[name]} reservations at {name}"
            if name not in seen.leases:
                assert name not in seen.leftovers, f"{name} is gone, its state is not"
        for key in KEYS:
            claimed, warm = seen.claimed[key], seen.warm[key]
            assert claimed | warm <= seen.leases, "held by a pod that is gone"
            assert not claimed & warm, "claimed where it is warm"
            assert all(key in seen.resident[name] for name in claimed | warm)

    def did_enough(self) -> None:
        """What no run is without."""
        for outcome in ("granted", "cold", "finish"):
            assert self.done[outcome], f"no {outcome} among {self.done}"


STEPS: list[tuple[Callable[[World], Awaitable[None]], int]] = [
    (World.route, 30), (World.give_back, 14), (World.renew, 2), (World.forget, 1),
    (World.join, 9), (World.leave, 3), (World.drain, 2), (World.beat, 6), (World.claim, 8),
    (World.go_on_loading, 18), (World.evict, 5), (World.declare, 4), (World.sweep, 3),
]  # fmt: skip
