"""A campaign: rounds of random faults under load, each until all is well again, and its checks."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from registry.errors import RegistryUnavailable
from runtime.loading.load_queue import DISK_FULL_BACKOFF
from tests.chaos.executions import executed_twice, read_ledger
from tests.chaos.faults import KINDS, Cause, Kind, NotCaused
from tests.chaos.leaks import Baseline, find_leaks, left_after_stop, read_baseline
from tests.chaos.load import Load, Outcome, Sent
from tests.chaos.platform import MODELS_MISSING, PlatformUnderTest
from tests.chaos.processes import Process

_HEAL_LIMIT_S: Final = 180.0
_ROUNDS_PER_CHECK: Final = 5
_POLL_S: Final = 0.1
_LAG_S: Final = 0.25
"""From when /proc says that a process has ended to the end of its connections, at most."""
_ALLOWED: Final = {200, 429, 502, 503, 504}
"""Statuses of answers under all faults."""
_ALLOWED_WITH: Final = {"Redis emptied": (404, 0.0), "disk full": (507, DISK_FULL_BACKOFF.max_s)}
"""The status that a fault also allows, from its begin until so many seconds after all is well.

A pod on which a load found the disk full tries again at its next attempt only.
"""


@dataclass(slots=True)
class Injected:
    """One fault. Times are of `time.monotonic`; `over_s` is its begin if it has no duration."""

    kind: str
    over_s: float
    duration_s: float
    is_alone: bool = False
    """Whether it was the only fault of its round."""
    heal_s: float = 0.0
    """From the end of the round's last fault until all was well."""


@dataclass(slots=True)
class Ended:
    """The end of a process, between two looks at the table of processes.

    That it was alive, at the first, does not count from the time of its kill on.
    """

    process: Process
    alive_s: float
    gone_s: float


@dataclass
class Campaign:
    platform: PlatformUnderTest
    seed: int
    rate: float
    faults: list[Injected] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    not_caused: Counter[str] = field(default_factory=Counter)
    """Faults by kind that met nothing to act on; they do not count among `faults`."""
    ends: list[Ended] = field(default_factory=list)
    killed: dict[tuple[int, int], float] = field(default_factory=dict)
    """Identities of processes that a fault has ended."""
    together: Sequence[str] = ()
    """Kinds of faults that every round causes, in place of random ones."""
    allowed: list[tuple[int, float, float]] = field(default_factory=list)
    """Statuses of `_ALLOWED_WITH`, and from when until when each was allowed."""
    checks: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.load = Load(
            self.platform.port, self.platform.models, random.Random(self.seed + 1), self.rate
        )

    async def run(self, count: int, *, limit_s: float) -> None:
        """Cause `count` faults, or as many as `limit_s` allows."""
        tasks = [asyncio.create_task(self._watch_processes())]
        await self._heal(time.monotonic())
        baseline = read_baseline(self.platform)
        tasks.append(asyncio.create_task(self.load.run()))
        began_s = time.monotonic()
        rounds = 0
        while len(self.faults) < count and time.monotonic() < began_s + limit_s:
            rounds += 1
            if not await self._round(count - len(self.faults)):
                break
            if rounds % _ROUNDS_PER_CHECK == 0:
                await self._check_leaks(baseline)
        await self._check_leaks(baseline)
        for task in tasks:
            task.cancel()
        self.violations += self._wrong_requests() + self._executed_twice() + self._crashes()
        await asyncio.to_thread(self.platform.down)
        left = await left_after_stop(self.platform)
        self.violations += [f"after the end: {each}" for each in left]

    # A round

    async def _round(self, most: int) -> bool:
        """Cause one to three faults at once and wait until all is well; False if it does not."""
        kinds = self._choose(min(most, self.rng.choices((1, 2, 3), (5, 3, 2))[0]))
        began_s = time.monotonic()
        tried = await asyncio.gather(*(self._inject(kind) for kind in kinds))
        injected = [each for each in tried if each is not None]
        if not injected:
            return True
        self.faults += injected
        is_emptied = any(each.kind == "Redis emptied" for each in injected)
        why, healed_s = await self._heal_for_good(declares=is_emptied)
        took_s = healed_s - max(each.over_s for each in injected)
        for each in injected:
            each.heal_s, each.is_alone = took_s, len(injected) == 1
            if each.kind in _ALLOWED_WITH:
                status, after_s = _ALLOWED_WITH[each.kind]
                until_s = float("inf") if why else healed_s + after_s
                self.allowed.append((status, began_s, until_s))
        names = ", ".join(f"{each.kind} ({each.duration_s:.1f} s)" for each in injected)
        print(f"{len(self.faults):5} {names}: {why or f'well after {took_s:.1f} s'}", flush=True)  # noqa: T201
        if why:
            self.violations.append(f"not well {_HEAL_LIMIT_S:g} s after {names}: {why}")
            return False
        return True

    def _choose(self, count: int) -> list[Kind]:
        """Different kinds, one of Redis at most: two could lose what only one may lose."""
        if self.together:
            return [each for each in KINDS if each.name in self.together]
        chosen: list[Kind] = []
        usable = [each for each in KINDS if self.platform.has_own_disk or not each.needs_disk]
        while len(chosen) < count:
            kind = self.rng.choices(usable, [each.weight for each in usable])[0]
            family = kind.name.split()[0]
            if all(each.name.split()[0] != family for each in chosen):
                chosen.append(kind)
        return chosen

    async def _inject(self, kind: Kind) -> Injected | None:
        duration_s = kind.duration_s(self.rng)
        cause = Cause(self.platform, self.rng, self.killed)
        began_s = time.monotonic()
        try:
            async with kind.begin(cause):
                await asyncio.sleep(duration_s)
        except NotCaused as error:
            self.not_caused[kind.name] += 1
            print(f"      {kind.name} not caused: {error}", flush=True)  # noqa: T201
            return None
        over_s = time.monotonic() if kind.max_s else began_s
        return Injected(kind.name, over_s, duration_s)

    async def _heal_for_good(self, *, declares: bool) -> tuple[str, float]:
        """As `_heal`, until Redis' replica is there as well; also when all was well at last.

        A Redis without disk space refuses Sentinel's PING. Sentinel may then have promoted the
        replica and still name the old master for ten seconds: what that took meanwhile is lost.
        """
        why = await self._heal(time.monotonic(), declares=declares)
        healed_s = time.monotonic()
        if why:
            return why, healed_s
        await self._wait_replica()
        if await self.platform.why_unhealthy():
            why = await self._heal(time.monotonic(), declares=declares)
            healed_s = time.monotonic()
        return why, healed_s

    async def _heal(self, began_s: float, *, declares: bool = False) -> str:
        """Wait until the platform is whole and each model answers; what is wrong after the limit.

        Looks twice: a killed process may not have been missed at the first look. `declares`: as
        the operator does who sees that models are missing. Models that were declared right before
        Sentinel promotes a replica are lost with the old master, although it had taken them.
        """
        well = 0
        why = ""
        while time.monotonic() < began_s + _HEAL_LIMIT_S:
            why = await self.platform.why_unhealthy()
            if declares and why == MODELS_MISSING:
                with suppress(RegistryUnavailable):
                    await self.platform.declare()
            why = why or await self._failing_model()
            well = 0 if why else well + 1
            if well == 2:
                return ""
            await asyncio.sleep(_POLL_S)
        return why

    async def _failing_model(self) -> str:
        probes = [self.load.probe(model) for model in range(self.platform.models)]
        for sent in await asyncio.gather(*probes):
            if sent.status != 200:
                return f"model {sent.model}: {sent.outcome} {sent.status} {sent.detail}"
        return ""

    async def _wait_replica(self) -> None:
        until_s = time.monotonic() + _HEAL_LIMIT_S
        while not await asyncio.to_thread(self.platform.redis.is_healthy):
            if time.monotonic() > until_s:
                raise RuntimeError("the replica of the campaign's Redis does not come back")
            await asyncio.sleep(_POLL_S)

    # Checks

    async def _check_leaks(self, baseline: Baseline) -> None:
        await self.load.pause()
        self.checks += 1
        leaks = await find_leaks(self.platform, baseline)
        self.violations += [f"after fault {len(self.faults)}: {each}" for each in leaks]
        for each in leaks:
            print(f"      left: {each}", flush=True)  # noqa: T201
        self.load.resume()

    def _wrong_requests(self) -> list[str]:
        gateways = [each for each in self.ends if each.process.role == "gateway"]
        found = []
        for sent in self.load.requests:
            text = f"{sent.id} to model {sent.model}: {sent.outcome} {sent.status} {sent.detail}"
            if sent.outcome in {Outcome.MISSING, Outcome.WRONG}:
                found.append(text)
            elif sent.outcome is Outcome.BROKEN:
                if not any(
                    each.alive_s <= sent.ended_s and sent.began_s <= each.gone_s + _LAG_S
                    for each in gateways
                ):
                    found.append(text)
            elif sent.outcome is Outcome.ANSWERED and not self._is_allowed(sent):
                found.append(text)
        return found

    def _is_allowed(self, sent: Sent) -> bool:
        return sent.status in _ALLOWED or any(
            status == sent.status and began_s <= sent.ended_s and sent.began_s <= until_s
            for status, began_s, until_s in self.allowed
        )

    def _executed_twice(self) -> list[str]:
        executions = read_ledger(self.platform.ledger)
        ends = [each for each in self.ends if each.process.role == "pod"]
        ends_s = [(each.alive_s, each.gone_s + _LAG_S) for each in ends]
        found = [f"executed twice: {text}" for text in executed_twice(executions, ends_s)]
        return found + [
            f"{sent.id} was answered and is not in the ledger"
            for sent in self.load.requests
            if sent.status == 200 and sent.id not in executions
        ]

    def _crashes(self) -> list[str]:
        """Ends of processes that no fault caused."""
        return [
            f"{each.process.role} {each.process.pid} ended by itself"
            for each in self.ends
            if each.process.identity not in self.killed and each.process.role != "other"
        ]

    async def _watch_processes(self) -> None:
        """Note the end of each process of the platform."""
        known: dict[tuple[int, int], Process] = {}
        looked_s = time.monotonic()
        while True:
            began_s = time.monotonic()
            processes = await asyncio.to_thread(self.platform.processes)
            now_s = time.monotonic()
            alive = {each.identity: each for each in processes}
            for identity in known.keys() - alive.keys():
                alive_s = min(looked_s, self.killed.get(identity, looked_s))
                self.ends.append(Ended(known[identity], alive_s, now_s))
            known = alive
            looked_s = began_s  # a process may have ended while others were looked at
            await asyncio.sleep(_POLL_S)
