"""The pod's voice in the registry: registration, heartbeats, tiers, claims for loads.

It keeps the pod serving while the registry is away: what could not be said is said again with the
next heartbeat, and after a lost lease the pod registers anew with everything it has.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from registry.domain.pod import PodInfo, PodPhase, PodReport, Samples
from registry.errors import ClaimLost, LeaseLost, RegistryUnavailable
from runtime.errors import LoadRefused
from runtime.metrics import HEARTBEATS

if TYPE_CHECKING:
    from collections.abc import Callable

    from registry.domain.model import LoadFailure, Tier
    from registry.domain.profile import Profile
    from registry.domain.reservation import ClaimScope
    from registry.redis.client import Registry
    from runtime.registration.measurements import Measurements

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TierState:
    """Where a model's weights are at this pod."""

    tier: Tier
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the agent asks the rest of the pod."""

    keys: Callable[[], set[str]]
    """Models of which the pod has anything."""
    held: Callable[[str], TierState]
    is_loading: Callable[[str], bool]
    used_bytes: Callable[[], dict[str, int]]
    loads_total: Callable[[], int]
    idle_byte_s: Callable[[], float]


@dataclass(frozen=True, slots=True)
class LoadClaim:
    """A load this pod may do; `token` is None where the registry was away."""

    token: int | None
    epoch: int


class RegistryAgent:
    """One pod's registration and all it says in its name."""

    def __init__(
        self,
        registry: Registry,
        info: PodInfo,
        inventory: Inventory,
        *,
        measurements: Measurements,
        heartbeat_s: float,
        lease_ttl_s: float,
    ) -> None:
        self._registry = registry
        self._info = info
        self._inventory = inventory
        self._measurements = measurements
        self._heartbeat_s = heartbeat_s
        self._lease_ttl_s = lease_ttl_s
        self._epoch = 0
        self._is_draining = False
        self._has_left = False
        self._is_cut_off = False
        self._unsaid: set[str] = set()
        self._wake = asyncio.Event()
        self._registered = asyncio.Event()

    @property
    def is_registered(self) -> bool:
        """Whether the pod holds a lease, as far as it knows."""
        return self._registered.is_set()

    # The task

    async def run(self) -> None:
        """Register, then beat and tell, until the pod leaves or this is cancelled."""
        loop = asyncio.get_running_loop()
        next_beat_s = loop.time()
        while not self._has_left:
            try:
                if loop.time() >= next_beat_s or not self.is_registered:
                    next_beat_s = loop.time() + self._heartbeat_s
                    await self._beat()
                self._wake.clear()
                await self._tell_tiers()
            except LeaseLost:
                logger.warning("lease lost, registering again")
                HEARTBEATS.labels(outcome="lease-lost").inc()
                self._registered.clear()
                continue
            except RegistryUnavailable as error:
                HEARTBEATS.labels(outcome="unavailable").inc()
                self._note_outage(error)
                await asyncio.sleep(min(0.2, self._heartbeat_s))
                continue
            await self._sleep_until(next_beat_s)

    async def _sleep_until(self, when_s: float) -> None:
        try:
            async with asyncio.timeout_at(when_s):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _beat(self) -> None:
        if not self.is_registered:
            self._epoch = await self._registry.register_pod(
                self._info, lease_ttl_s=self._lease_ttl_s
            )
            if self._is_draining:
                await self._registry.set_phase(self._info.name, self._epoch, PodPhase.DRAINING)
            self._unsaid |= self._inventory.keys()
            await self._tell_tiers()
            self._registered.set()
            logger.info("registered", extra={"pod": self._info.name, "epoch": self._epoch})
        samples = self._measurements.take()
        try:
            await self._send_report(samples)
        except RegistryUnavailable:
            self._measurements.restore(samples)
            raise
        HEARTBEATS.labels(outcome="ok").inc()
        if self._is_cut_off:
            self._is_cut_off = False
            logger.info("registry back")

    def _note_outage(self, error: RegistryUnavailable) -> None:
        """One line per outage, not one per heartbeat."""
        if not self._is_cut_off:
            self._is_cut_off = True
            logger.warning("registry away, serving on", extra={"error": error})

    async def _send_report(self, samples: tuple[Samples, ...]) -> None:
        report = PodReport(
            used_bytes=self._inventory.used_bytes(),
            samples=samples,
            loads_total=self._inventory.loads_total(),
            idle_byte_s=self._inventory.idle_byte_s(),
        )
        await self._registry.heartbeat(
            self._info.name, self._epoch, report, lease_ttl_s=self._lease_ttl_s
        )

    async def _tell_tiers(self) -> None:
        for key in sorted(self._unsaid):
            if self._inventory.is_loading(key):
                continue  # its claim must stand; the load's end says where the model is
            held = self._inventory.held(key)
            await self._registry.set_tier(
                self._info.name, self._epoch, key, held.tier, held.size_bytes
            )
            if self._inventory.held(key) == held:
                self._unsaid.discard(key)

    # What the rest of the pod says

    def report_tier(self, key: str) -> None:
        """Say soon where a model is; nobody waits for it."""
        self._unsaid.add(key)
        self._wake.set()

    async def claim(self, key: str, scope: ClaimScope) -> LoadClaim:
        """A claim for a load; raises LoadRefused where the registry gives none."""
        if not self.is_registered:
            return LoadClaim(None, self._epoch)
        if key in self._unsaid:
            await self._say_now(key)
        epoch = self._epoch
        try:
            token = await self._registry.claim_load(self._info.name, epoch, key, scope)
        except (RegistryUnavailable, LeaseLost):
            return LoadClaim(None, epoch)
        if token is None:
            raise LoadRefused(f"the registry gave no claim for {key} ({scope.value})")
        return LoadClaim(token, epoch)

    async def _say_now(self, key: str) -> None:
        held = self._inventory.held(key)
        try:
            await self._registry.set_tier(
                self._info.name, self._epoch, key, held.tier, held.size_bytes
            )
        except (RegistryUnavailable, LeaseLost):
            return
        self._unsaid.discard(key)

    def adopt(self, token: int) -> LoadClaim:
        """A claim that the gateway made for this pod."""
        return LoadClaim(token, self._epoch)

    async def start_load(self, key: str, claim: LoadClaim, source: Tier) -> None:
        """Say that a claimed load began; raises ClaimLost."""
        if claim.token is None:
            return
        try:
            await self._registry.start_load(self._info.name, claim.epoch, key, claim.token, source)
        except (RegistryUnavailable, LeaseLost):
            return

    async def finish_load(self, key: str, claim: LoadClaim, memory_bytes: int) -> None:
        """Say that the pod is warm; raises ClaimLost, upon which the model must go."""
        if claim.token is None:
            self.report_tier(key)
            return
        try:
            await self._registry.finish_load(
                self._info.name, claim.epoch, key, claim.token, memory_bytes
            )
        except RegistryUnavailable:
            self.report_tier(key)
        except LeaseLost:
            # The claim went with the old registration; the new one reports what is here.
            self.report_tier(key)
        except ClaimLost:
            if claim.epoch == self._epoch:
                raise
            self.report_tier(key)

    async def fail_load(self, key: str, claim: LoadClaim, failure: LoadFailure) -> bool:
        """Say why a load failed, for all pods and gateways to see; False: it was not heard."""
        if claim.token is None:
            return False
        try:
            await self._registry.fail_load(self._info.name, claim.epoch, key, claim.token, failure)
        except (RegistryUnavailable, LeaseLost, ClaimLost) as error:
            logger.info("load failure not recorded", extra={"key": key, "error": error})
            return False
        return True

    async def report_broken(self, failure: LoadFailure) -> None:
        """Say that a model stopped working here; without the registry only this pod knows it."""
        try:
            await self._registry.report_model_failure(self._info.name, self._epoch, failure)
        except (RegistryUnavailable, LeaseLost) as error:
            logger.info("broken model not recorded", extra={"key": failure.key, "error": error})

    async def store_profile(self, profile: Profile) -> bool:
        """Store what a model costs by batch size; False: it was not heard or is not declared."""
        try:
            return await self._registry.put_profile(profile)
        except RegistryUnavailable as error:
            logger.info("profile not stored", extra={"key": profile.key, "error": error})
            return False

    async def end_inference(self, reservation_id: str) -> None:
        """Free a reservation's place in the inference stage; it expires if that is not heard."""
        try:
            await self._registry.end_inference(self._info.name, reservation_id)
        except RegistryUnavailable:
            logger.debug("reservation left to expire", extra={"reservation": reservation_id})

    async def drain(self) -> None:
        """Say that the pod takes no new requests."""
        self._is_draining = True
        try:
            await self._registry.set_phase(self._info.name, self._epoch, PodPhase.DRAINING)
        except (RegistryUnavailable, LeaseLost) as error:
            logger.warning("draining not said", extra={"error": error})

    async def leave(self) -> None:
        """Say the last, then deregister for good, so that nobody waits for the lease to end."""
        self._has_left = True
        if not self.is_registered:
            return
        try:
            await self._send_report(self._measurements.take())
            await self._registry.deregister_pod(self._info.name, self._epoch)
        except LeaseLost:
            logger.info("the lease was over before the pod left")
        except RegistryUnavailable as error:
            logger.warning("left without deregistering", extra={"error": error})
