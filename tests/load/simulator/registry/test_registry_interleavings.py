"""The registry's random steps against the registry in memory, on a clock of their own."""

import random
from dataclasses import dataclass
from math import inf

import pytest

from load.simulator.memory_registry import MemoryRegistry
from registry.domain.pod import PodPhase
from registry.redis.client import Registry
from tests.load.simulator.registry.memory_client import MemoryClient
from tests.registry.redis.clients import Pod
from tests.registry.redis.interleavings import (
    KEYS,
    PODS,
    SLOTS,
    STEPS,
    Load,
    RandomRun,
    RegistryContents,
)

STEP_S = 0.01
"""Longest time between two steps: short leases and claims end within about ten steps."""


class Clock:
    """Time that tests advance."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now_s(self) -> float:
        return self.time_s


@dataclass
class MemoryInspector:
    """Reads the private members and claims of the registry in memory."""

    memory: MemoryRegistry
    clock: Clock

    async def contents(self) -> RegistryContents:
        members, residency = self.memory.pods.by_name, self.memory.state.residency
        resident = {name: {key for key in residency if name in residency[key]} for name in PODS}
        return RegistryContents(
            leases=set(members),
            taken={name: self._taken(name) for name in PODS},
            leftovers={name for name in PODS if name in self.memory.state.pods or resident[name]},
            resident=resident,
            claimed={key: set(self.memory._claims.get(key, ())) for key in KEYS},
            warm={key: self._warm(key) for key in KEYS},
        )

    def _taken(self, pod: str) -> int:
        member = self.memory.pods.by_name.get(pod)
        ends = () if member is None else member.slots.values()
        return sum(end_s > self.clock.time_s for end_s in ends)

    def _warm(self, key: str) -> set[str]:
        return {pod for pod, each in self.memory.state.holders(key).items() if each.is_warm}

    async def holds_claim(self, load: Load) -> bool:
        claim = self.memory._claims.get(load.key, {}).get(load.pod.name)
        member = self.memory.pods.by_name.get(load.pod.name)
        return (
            claim is not None
            and claim.token == load.token
            and member is not None
            and member.state.epoch == load.pod.epoch
            and min(claim.expiry_s, member.lease_end_s) > self.clock.time_s
        )

    async def other_copies(self, key: str, pod: str) -> set[str]:
        now_s = self.clock.time_s
        claims = self.memory._claims.get(key, {}).items()
        found = self._warm(key) | {name for name, claim in claims if claim.expiry_s > now_s}
        return {name for name in found - {pod} if self._is_serving(name)}

    def _is_serving(self, pod: str) -> bool:
        member = self.memory.pods.by_name.get(pod)
        return (
            member is not None
            and member.lease_end_s > self.clock.time_s
            and member.state.phase is PodPhase.READY
        )

    async def sync(self, gateway: Registry) -> None:
        await gateway.cluster()

    def check_counts(self) -> None:
        """Policies read the counts of the reservations."""
        for name, member in self.memory.pods.by_name.items():
            state = self.memory.state.pods[name]
            assert (state.slots_used, state.ongoing) == (len(member.slots), len(member.ongoing))

    def check_nothing_has_expired(self) -> None:
        """Holds after a sync."""
        members = self.memory.pods.by_name.values()
        ends_s = [
            end_s
            for member in members
            for end_s in (member.lease_end_s, *member.slots.values(), *member.ongoing.values())
        ]
        claims = self.memory._claims.values()
        ends_s += [claim.expiry_s for by_pod in claims for claim in by_pod.values()]
        assert min(ends_s, default=inf) > self.clock.time_s


@pytest.mark.parametrize("seed", range(20))
async def test_invariants_hold_for_random_sequences(seed: int) -> None:
    clock, memory = Clock(), MemoryRegistry()
    inspector = MemoryInspector(memory, clock)
    gateways: list[Registry] = [MemoryClient(memory, clock.now_s) for _ in range(2)]
    run = RandomRun(random.Random(seed), gateways, inspector)
    for name in PODS[:3]:
        run.pods[name] = await Pod.join(gateways[0], name, slots=SLOTS)
    steps, weights = zip(*STEPS, strict=True)
    for _ in range(500):
        clock.time_s += run.rng.uniform(0.0, STEP_S)
        await run.rng.choices(steps, weights)[0](run)
        await run.check()
        inspector.check_counts()
    clock.time_s += 1.0
    await inspector.sync(gateways[0])
    await run.check()
    inspector.check_counts()
    inspector.check_nothing_has_expired()
    run.check_coverage()
