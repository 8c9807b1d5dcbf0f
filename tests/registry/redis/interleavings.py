"""Random steps of gateways and pods against a registry, with the invariants that always hold."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from registry.domain.model import LoadFailure, ModelName, ModelSpec, Tier
from registry.domain.pod import PodPhase, PodReport
from registry.domain.pod_state import ANY_COPIES, Granted, LoadMode, Refusal
from registry.errors import ClaimLost, LeaseLost
from registry.redis.client import Registry
from tests.registry.redis.clients import Pod, release, reserve, terms

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
class HeldReservation:
    """A reservation granted to a gateway."""

    id: str
    entry: str
    predict: str


@dataclass
class Load:
    """A load that a pod has claimed, perhaps a stalled one."""

    pod: Pod
    key: str
    token: int


@dataclass(frozen=True)
class RegistryContents:
    """Contents of a registry at one time."""

    leases: set[str]
    taken: dict[str, int]
    """Reservations that have not expired, by pod."""
    leftovers: set[str]
    """Pods with any state beside the lease."""
    resident: dict[str, set[str]]
    """Keys of models, by pod."""
    claimed: dict[str, set[str]]
    """Pods, by key."""
    warm: dict[str, set[str]]
    """Pods, by key."""


class Inspector(Protocol):
    """Reads a registry directly, without its operations."""

    async def contents(self) -> RegistryContents:
        """Everything in the registry now."""

    async def holds_claim(self, load: Load) -> bool:
        """Whether the load's token is valid for the pod's own epoch."""

    async def other_copies(self, key: str, pod: str) -> set[str]:
        """Other accepting pods that hold the model or have a valid claim."""

    async def sync(self, gateway: Registry) -> None:
        """Remove what has expired."""


@dataclass
class RandomRun:
    """The gateways and pods of a run, and what each of them believes."""

    rng: random.Random
    gateways: list[Registry]
    inspector: Inspector
    is_concurrent: bool = False
    pods: dict[str, Pod] = field(default_factory=dict)
    stalled: list[Pod] = field(default_factory=list)
    """Processes that may continue after their lease ended or their successor started."""
    held: dict[int, list[HeldReservation]] = field(default_factory=lambda: defaultdict(list))
    loads: list[Load] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    # Steps of gateways

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
        self.outcomes[result.value if isinstance(result, Refusal) else "granted"] += 1
        if not isinstance(result, Granted):
            return
        self.held[number].append(HeldReservation(id_, entry, predict))
        pod = self.pods.get(predict)
        if result.load_token:
            self.outcomes["claimed by a gateway"] += 1
            if copies == 0:
                await self._check_only_copy(key, predict)
        if result.load_token and pod is not None:
            self.loads.append(Load(pod, key, result.load_token))

    async def _check_only_copy(self, key: str, pod: str) -> None:
        if not self.is_concurrent:
            others = await self.inspector.other_copies(key, pod)
            assert not others, f"a second load of {key} at {pod} beside {others}"

    async def release_one(self) -> None:
        number = self.rng.randrange(len(self.gateways))
        if self.held[number]:
            held = self.held[number].pop(self.rng.randrange(len(self.held[number])))
            if self.rng.random() < 0.5:
                await self.gateways[number].end_inference(held.predict, held.id)
            await release(self.gateways[number], held.id, held.entry, held.predict)

    async def renew(self) -> None:
        number = self.rng.randrange(len(self.gateways))
        for held in self.held[number]:
            self.gateways[number].renew(held.id, terms(held.entry, held.predict))

    async def restart_gateway(self) -> None:
        """A gateway crashes and starts again: its reservations are not released."""
        self.held.pop(self.rng.randrange(len(self.gateways)), None)

    async def declare(self) -> None:
        gateway = self.rng.choice(self.gateways)
        if self.rng.random() < 0.2:
            await gateway.delete_models([self.rng.choice(SPECS).name])
        else:
            await gateway.put_models([self.rng.choice(SPECS)])

    # Steps of pods

    async def join(self) -> None:
        name = self.rng.choice(PODS)
        if name in self.pods:
            self.stalled.append(self.pods[name])
        lease_s = self.rng.choice([LEASE_S, 60.0, 60.0, 60.0])
        registry = self.rng.choice(self.gateways)
        self.pods[name] = await Pod.join(registry, name, slots=SLOTS, lease_ttl_s=lease_s)

    async def leave(self) -> None:
        if self.pods:
            pod = self.pods.pop(self.rng.choice(sorted(self.pods)))
            self.stalled.append(pod)
            if self.rng.random() < 0.7:
                await pod.leave()

    async def drain(self) -> None:
        with contextlib.suppress(LeaseLost):
            for pod in self._some_pod():
                phase = self.rng.choice([PodPhase.DRAINING, PodPhase.READY])
                await pod.registry.set_phase(pod.name, pod.epoch, phase)

    async def heartbeat(self) -> None:
        for pod in self._some_pod(include_stalled=True):
            with contextlib.suppress(LeaseLost):
                await pod.heartbeat(PodReport({"device": self.rng.randrange(3)}))

    async def claim(self) -> None:
        for pod in self._some_pod(include_stalled=True):
            key, copies = self.rng.choice(KEYS), self.rng.choice([ANY_COPIES, 0, 1])
            with contextlib.suppress(LeaseLost):
                token = await pod.claim(key, copies, ttl_s=self.rng.choice([SHORT_S, 60.0]))
                if token is not None:
                    self.outcomes["claimed by a pod"] += 1
                    self.loads.append(Load(pod, key, token))
                    if copies == 0:
                        await self._check_only_copy(key, pod.name)

    async def continue_load(self) -> None:
        if not self.loads:
            return
        load = self.loads.pop(self.rng.randrange(len(self.loads)))
        step = self.rng.choice(["start", "finish", "finish", "fail"])
        is_valid = await self.inspector.holds_claim(load)
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
            self.outcomes["fenced"] += 1
        else:
            self.outcomes[step] += 1
            assert is_valid, f"{step} by a fenced load: {load}"

    async def evict(self) -> None:
        for pod in self._some_pod(include_stalled=True):
            with contextlib.suppress(LeaseLost):
                await pod.set_tier(self.rng.choice([Tier.DISK, Tier.REMOTE]), self.rng.choice(KEYS))

    async def sync(self) -> None:
        await self.inspector.sync(self.rng.choice(self.gateways))

    def _some_pod(self, *, include_stalled: bool = False) -> list[Pod]:
        if include_stalled and self.stalled and self.rng.random() < 0.2:
            return [self.rng.choice(self.stalled)]
        return [self.pods[self.rng.choice(sorted(self.pods))]] if self.pods else []

    # Invariants

    async def check(self) -> None:
        found = await self.inspector.contents()
        for name in PODS:
            assert found.taken[name] <= SLOTS, f"{found.taken[name]} reservations at {name}"
            if name not in found.leases:
                assert name not in found.leftovers, f"{name} was removed, its state was not"
        for key in KEYS:
            claimed, warm = found.claimed[key], found.warm[key]
            assert claimed | warm <= found.leases, "held by a removed pod"
            assert not claimed & warm, "claimed where it is warm"
            assert all(key in found.resident[name] for name in claimed | warm)

    def check_coverage(self) -> None:
        """Every run must have had these outcomes."""
        for outcome in ("granted", "cold", "finish"):
            assert self.outcomes[outcome], f"no {outcome} among {self.outcomes}"


STEPS: list[tuple[Callable[[RandomRun], Awaitable[None]], int]] = [
    (RandomRun.route, 30), (RandomRun.release_one, 14), (RandomRun.renew, 2),
    (RandomRun.restart_gateway, 1), (RandomRun.join, 9), (RandomRun.leave, 3),
    (RandomRun.drain, 2), (RandomRun.heartbeat, 6), (RandomRun.claim, 8),
    (RandomRun.continue_load, 18), (RandomRun.evict, 5), (RandomRun.declare, 4),
    (RandomRun.sync, 3),
]  # fmt: skip
