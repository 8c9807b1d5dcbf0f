"""The pod's connection to the registry: registration, heartbeats, tiers, claims for loads.

During an outage of the registry the pod continues to serve: unsent reports are sent with a later
heartbeat, and after a lost lease the pod registers again and reports all its models.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace

from registry.domain.model import LoadFailure, Tier
from registry.domain.pod import (
    CopyReport,
    GpuReading,
    PodInfo,
    PodPhase,
    PodReport,
    Profile,
    Samples,
)
from registry.domain.pod_state import LoadClaim, PodState
from registry.errors import ClaimLost, LeaseLost, RegistryUnavailable
from registry.redis.client import Registry
from runtime.errors import LoadRefused
from runtime.measurements import Measurements, at_average_pod
from runtime.metrics import HEARTBEATS

logger = logging.getLogger(__name__)

MAX_BLOCKED_S = 30.0
MAX_QUEUED_ENDS = 10_000
SLOTS_STEP = 8
"""A change of more than this part of the slots is reported."""
RETRY_INTERVAL_S = 0.2
"""Time between attempts to reach the registry, if the heartbeat interval is longer."""


@dataclass(frozen=True, slots=True)
class SentHeartbeat:
    epoch: int
    report: PodReport
    sent_s: float
    """On the clock of `time.monotonic`."""


class LeaseKeeper:
    """Repeats the event loop's last heartbeat when the next one is late, from its own thread.

    A lease that is lost in passing costs the pod's queued requests and the registration of all its
    models. A loop that stays blocked loses it after `MAX_BLOCKED_S`: requests go elsewhere.
    """

    def __init__(
        self, registry: Registry, pod: str, *, heartbeat_s: float, lease_ttl_s: float
    ) -> None:
        self._url, self._pool = registry.url, registry.pool
        self._pod = pod
        self._heartbeat_s = heartbeat_s
        self._lease_ttl_s = lease_ttl_s
        self._last: SentHeartbeat | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()

    def sent(self, epoch: int, report: PodReport) -> None:
        """The event loop has sent this heartbeat; its samples are not repeated."""
        self._last = SentHeartbeat(epoch, replace(report, samples=()), time.monotonic())

    def forget(self) -> None:
        """Keep no lease until the next heartbeat: it was lost, or the pod leaves."""
        self._last = None

    def _watch(self) -> None:
        while not self._closed.wait(self._heartbeat_s):
            last = self._last
            if last is None:
                continue
            late_s = time.monotonic() - last.sent_s
            if 1.5 * self._heartbeat_s < late_s < MAX_BLOCKED_S:
                self._repeat(last)

    def _repeat(self, last: SentHeartbeat) -> None:
        try:
            asyncio.run(self._send(last))
        except (LeaseLost, RegistryUnavailable) as error:
            logger.info("lease not kept", extra={"error": error})
        else:
            logger.warning("event loop is late, lease kept")

    async def _send(self, last: SentHeartbeat) -> None:
        registry = Registry(self._url, self._pool)  # of this thread
        try:
            await registry.heartbeat(
                self._pod, last.epoch, last.report, lease_ttl_s=self._lease_ttl_s
            )
        finally:
            await registry.close()


@dataclass(frozen=True, slots=True)
class TierState:
    """The nearest tier of a model's weights at this pod."""

    tier: Tier
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """Queries of the agent about the rest of the pod."""

    keys: Callable[[], set[str]]
    """Models with files or memory at the pod."""
    tier_state: Callable[[str], TierState]
    is_loading: Callable[[str], bool]
    used_bytes: Callable[[], dict[str, int]]
    loads_total: Callable[[], int]
    idle_byte_s: Callable[[], float]
    copies: Callable[[], Mapping[str, CopyReport]]
    gpu: Callable[[], GpuReading | None] = lambda: None
    pods: Callable[[], Mapping[str, PodState]] = dict
    """Those of the local copy."""


@dataclass(eq=False, slots=True)
class RegistryAgent:
    registry: Registry
    info: PodInfo
    inventory: Inventory
    _: KW_ONLY
    measurements: Measurements
    heartbeat_s: float
    lease_ttl_s: float
    is_registered: bool = field(default=False, init=False)
    """Whether the pod has a lease, unless it has expired since the last heartbeat."""
    is_held: bool = field(default=False, init=False)
    """Whether the pod has no lease on purpose: it could serve no model."""
    _epoch: int = field(default=0, init=False)
    _is_draining: bool = field(default=False, init=False)
    _has_left: bool = field(default=False, init=False)
    _is_registry_unavailable: bool = field(default=False, init=False)
    _slots: int = field(init=False)
    """What the pod offers; `info` has what the registry knows."""
    _unreported: set[str] = field(default_factory=set, init=False)
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _keeper: LeaseKeeper = field(init=False)

    def __post_init__(self) -> None:
        self._slots = self.info.slots
        self._keeper = LeaseKeeper(
            self.registry, self._name, heartbeat_s=self.heartbeat_s, lease_ttl_s=self.lease_ttl_s
        )

    @property
    def _name(self) -> str:
        return self.info.name

    # The task

    async def run(self) -> None:
        """Register, then send heartbeats and tiers, until the pod leaves or this is cancelled."""
        self._keeper.start()
        try:
            await self._run()
        finally:
            self._keeper.close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        next_heartbeat_s = loop.time()
        while not self._has_left:
            self._wake.clear()
            try:
                if self.is_held:
                    await self._step_back()
                    continue
                if loop.time() >= next_heartbeat_s or not self.is_registered:
                    next_heartbeat_s = loop.time() + self.heartbeat_s
                    await self._heartbeat()
                await self._send_tiers()
                await self._send_slots()
            except LeaseLost:
                if self._has_left:
                    return
                logger.warning("lease lost, registering again")
                HEARTBEATS.labels(outcome="lease-lost").inc()
                self.is_registered = False
                self._keeper.forget()
                continue
            except RegistryUnavailable as error:
                HEARTBEATS.labels(outcome="unavailable").inc()
                self._log_outage(error)
                await asyncio.sleep(min(RETRY_INTERVAL_S, self.heartbeat_s))
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout_at(next_heartbeat_s):
                    await self._wake.wait()

    async def _step_back(self) -> None:
        """Give up the lease, and wait until the pod may have one again."""
        if self.is_registered:
            self.is_registered = False
            self._keeper.forget()
            await self.registry.deregister_pod(self._name, self._epoch)
        self._wake.clear()
        if self.is_held and not self._has_left:
            await self._wake.wait()

    def hold(self) -> None:
        """Deregister soon: the pod can serve no model until `release`."""
        self.is_held = True
        self._wake.set()

    def release(self) -> None:
        """Register again soon."""
        self.is_held = False
        self._wake.set()

    async def _heartbeat(self) -> None:
        if not self.is_registered:
            self._epoch = await self.registry.register_pod(self.info, lease_ttl_s=self.lease_ttl_s)
            if self._has_left:  # meanwhile, and found no lease to end
                await self.registry.deregister_pod(self._name, self._epoch)
                return
            if self._is_draining:
                await self.registry.set_phase(self._name, self._epoch, PodPhase.DRAINING)
            self._unreported |= self.inventory.keys()
            await self._send_tiers()
            self.is_registered = True
            logger.info("registered", extra={"pod": self._name, "epoch": self._epoch})
        samples = self.measurements.take()
        try:
            await self._send_report(samples)
        except RegistryUnavailable:
            self.measurements.restore(samples)
            raise
        HEARTBEATS.labels(outcome="ok").inc()
        if self._is_registry_unavailable:
            self._is_registry_unavailable = False
            logger.info("registry available again")

    def _log_outage(self, error: RegistryUnavailable) -> None:
        """One line per outage, not one per heartbeat."""
        if not self._is_registry_unavailable:
            self._is_registry_unavailable = True
            logger.warning("registry unavailable, serving on", extra={"error": error})

    async def _send_report(self, samples: tuple[Samples, ...]) -> None:
        speed = self.measurements.speed.compare(self._name, self.inventory.pods())
        report = PodReport(
            used_bytes=self.inventory.used_bytes(),
            samples=at_average_pod(samples, speed),
            loads_total=self.inventory.loads_total(),
            idle_byte_s=self.inventory.idle_byte_s(),
            copies=self.inventory.copies(),
            gpu=self.inventory.gpu(),
            speed=speed,
        )
        epoch = self._epoch
        await self.registry.heartbeat(self._name, epoch, report, lease_ttl_s=self.lease_ttl_s)
        self._keeper.sent(epoch, report)

    async def _send_tiers(self) -> None:
        for key in sorted(self._unreported):
            if not self.inventory.is_loading(key):  # a tier would end its claim
                await self._send_tier(key)

    async def _send_tier(self, key: str) -> None:
        state = self.inventory.tier_state(key)
        await self.registry.set_tier(self._name, self._epoch, key, state.tier, state.size_bytes)
        if self.inventory.tier_state(key) == state:
            self._unreported.discard(key)

    # Reports and claims

    def offer_slots(self, slots: int) -> None:
        """Report soon that the pod has so many; small changes are not worth a report."""
        if abs(slots - self._slots) > self._slots // SLOTS_STEP:
            self._slots = slots
            self._wake.set()

    async def _send_slots(self) -> None:
        if self._slots != self.info.slots:
            info = replace(self.info, slots=self._slots)
            await self.registry.resize_pod(info, self._epoch)
            self.info = info

    def report_tier(self, key: str) -> None:
        """Send the tier of a model soon, in the background."""
        self._unreported.add(key)
        self._wake.set()

    async def claim(self, key: str, max_other_copies: int) -> LoadClaim:
        """A claim for a load; raises LoadRefused if the registry refuses it.

        Also while the first tiers are sent: others see the pod, and ask it for loads, before.
        """
        if not self._epoch:
            return LoadClaim(None, self._epoch)
        if key in self._unreported:
            with suppress(RegistryUnavailable, LeaseLost):
                await self._send_tier(key)
        epoch = self._epoch
        try:
            token = await self.registry.claim_load(self._name, epoch, key, max_other_copies)
        except (RegistryUnavailable, LeaseLost):
            return LoadClaim(None, epoch)
        if token is None:
            raise LoadRefused(f"the registry refused a claim for {key}: it loads, or has copies")
        return LoadClaim(token, epoch)

    def claim_of(self, token: int) -> LoadClaim:
        """A claim that the gateway made for this pod."""
        return LoadClaim(token, self._epoch)

    async def start_load(self, key: str, claim: LoadClaim, source: Tier) -> None:
        """Report the start of a claimed load; raises ClaimLost."""
        if claim.token is not None:
            with suppress(RegistryUnavailable, LeaseLost):
                await self.registry.start_load(self._name, claim.epoch, key, claim.token, source)

    async def finish_load(self, key: str, claim: LoadClaim, memory_bytes: int) -> None:
        """Report the end of a load; raises ClaimLost, after which the model must be removed."""
        if claim.token is not None:
            try:
                await self.registry.finish_load(
                    self._name, claim.epoch, key, claim.token, memory_bytes
                )
            except (RegistryUnavailable, LeaseLost):
                pass
            except ClaimLost:
                if claim.epoch == self._epoch:
                    raise
            else:
                return
        # The claim ended with the lease, or the registry is unavailable: report the tier instead.
        self.report_tier(key)

    async def fail_load(self, key: str, claim: LoadClaim, failure: LoadFailure) -> bool:
        """Report a failed load to all pods and gateways; False if the registry did not accept."""
        if claim.token is None:
            return False
        try:
            await self.registry.fail_load(self._name, claim.epoch, key, claim.token, failure)
        except (RegistryUnavailable, LeaseLost, ClaimLost) as error:
            logger.info("load failure not reported", extra={"key": key, "error": error})
            return False
        return True

    async def report_broken(self, failure: LoadFailure) -> None:
        """Report a broken model; during an outage of the registry only this pod records it."""
        try:
            await self.registry.report_model_failure(self._name, self._epoch, failure)
        except (RegistryUnavailable, LeaseLost) as error:
            logger.info("broken model not reported", extra={"key": failure.key, "error": error})

    async def store_profile(self, profile: Profile) -> bool:
        """Store a model's profile; False if the registry is unavailable or the model unknown."""
        try:
            return await self.registry.put_profile(profile)
        except RegistryUnavailable as error:
            logger.info("profile not stored", extra={"key": profile.key, "error": error})
            return False

    async def end_inference(self, reservation_id: str) -> None:
        """End a reservation's inference stage; without the registry it expires."""
        try:
            await self.registry.end_inference(self._name, reservation_id)
        except RegistryUnavailable:
            logger.debug("reservation left to expire", extra={"reservation": reservation_id})

    async def drain(self) -> None:
        self._is_draining = True
        try:
            await self.registry.set_phase(self._name, self._epoch, PodPhase.DRAINING)
        except (RegistryUnavailable, LeaseLost) as error:
            logger.warning("draining not reported", extra={"error": error})

    async def leave(self) -> None:
        """Send a last report and deregister, so that the lease need not expire."""
        self._has_left = True
        self._wake.set()
        if not self._epoch:
            return
        try:
            await self._send_report(self.measurements.take())
            self._keeper.forget()
            await self.registry.deregister_pod(self._name, self._epoch)
        except LeaseLost:
            logger.info("lease expired before deregistration")
        except RegistryUnavailable as error:
            logger.warning("left without deregistering", extra={"error": error})


class InferenceEndNotifier:
    """Reports ended inference stages in the background, off the path of requests."""

    def __init__(self, agent: RegistryAgent) -> None:
        self._agent = agent
        self._ended: asyncio.Queue[str] = asyncio.Queue(MAX_QUEUED_ENDS)

    def notify(self, reservation_id: str | None) -> None:
        """Queue the end of a reservation's inference; if the queue is full, it expires instead."""
        if reservation_id is not None and not self._ended.full():
            self._ended.put_nowait(reservation_id)

    async def run(self) -> None:
        """Send until cancelled; all queued reports are sent concurrently."""
        while True:
            batch = [await self._ended.get()]
            while not self._ended.empty():
                batch.append(self._ended.get_nowait())
            await asyncio.gather(*(self._agent.end_inference(each) for each in batch))
