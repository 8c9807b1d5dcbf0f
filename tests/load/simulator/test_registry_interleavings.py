"""The registry's random interleavings against the registry in memory, on a clock of their own."""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import pytest

from load.simulator.registry.memory_registry import MemoryRegistry
from registry.domain.pod import PodPhase
from tests.load.simulator.memory_client import MemoryClient
from tests.registry.actors import Pod
from tests.registry.interleavings import KEYS, PODS, SLOTS, STEPS, Seen, World

if TYPE_CHECKING:
    from registry.redis.client import Registry
    from tests.registry.interleavings import Load

pytestmark = pytest.mark.anyio

STEP_S = 0.01
"""Longest time between two steps: short leases and claims end within some ten of them."""


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now_s(self) -> float:
        return self.time_s


@dataclass
class MemoryWitness:
    """Looks at the members and claims that the registry in memory keeps for itself."""

    memory: MemoryRegistry
    clock: Clock

    async def look(self) -> Seen:
        members, residency = self.memory.pods.by_name, self.memory.state.residency
        resident = {name: {key for key in residency if name in residency[key]} for name in PODS}
        return Seen(
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

    async def stands(self, load: Load) -> bool:
        claim = self.memory._claims.get(load.key, {}).get(load.pod.name)
        member = self.memory.pods.by_name.get(load.pod.name)
        return (
            claim is not None
            and claim.token == load.token
            and member is not None
            and member.state.epoch == load.pod.epoch
            and min(claim.expiry_s, member.lease_end_s) > self.clock.time_s
        )

    async def others_with(self, key: str, pod: str) -> set[str]:
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

    async def sweep(self, gateway: Registry) -> None:
        await gateway.cluster()

    def check_counts(self) -> None:
        """What policies read is what is held."""
        for name, member in self.memory.pods.by_name.items():
            state = self.memory.state.pods[name]
            assert (state.slots_used, state.ongoing) == (len(member.slots), len(member.ongoing))

    def check_nothing_is_over(self) -> None:
        """As after a sweep."""
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
async def test_whatever_happens_in_turn_the_invariants_hold(seed: int) -> None:
    clock, memory = Clock(), MemoryRegistry()
    witness = MemoryWitness(memory, clock)
    gateways: list[Registry] = [MemoryClient(memory, clock.now_s) for _ in range(2)]
    world = World(random.Random(seed), gateways, witness)
    for name in PODS[:3]:
        world.pods[name] = await Pod.join(gateways[0], name, slots=SLOTS)
    steps, weights = zip(*STEPS, strict=True)
    for _ in range(500):
        clock.time_s += world.rng.uniform(0.0, STEP_S)
        await world.rng.choices(steps, weights)[0](world)
        await world.check()
        witness.check_counts()
    clock.time_s += 1.0
    await witness.sweep(gateways[0])
    await world.check()
    witness.check_counts()
    witness.check_nothing_is_over()
    world.did_enough()
