"""A simulated pod's lease, heartbeats and load claims, as `runtime.registry_agent`."""

from collections.abc import Callable
from contextlib import suppress

from load.simulator.event_queue import EventQueue
from load.simulator.memory_registry import MemoryRegistry
from registry.domain.model import LoadFailure, Tier
from registry.domain.pod import LEASE_TTL_S, PodInfo, PodPhase, PodReport
from registry.domain.pod_state import LoadClaim
from registry.errors import ClaimLost, LeaseLost
from runtime.errors import LoadRefused
from runtime.measurements import Measurements


class SimulatedRegistryAgent:
    """Registers one pod and publishes its state. Heartbeats without changes are omitted."""

    def __init__(
        self,
        name: str,
        events: EventQueue,
        registry: MemoryRegistry,
        *,
        heartbeat_s: float,
        offset_s: float,
        report: Callable[[], PodReport],
        on_change: Callable[[], None],
    ) -> None:
        """Heartbeats are at `offset_s` plus multiples of `heartbeat_s`; `report` is their content.

        `on_change` is called after each heartbeat, and after the registry has removed the pod.
        """
        self.name = name
        self.epoch = 0
        self.is_alive = False
        self.is_heartbeat_planned = False
        self.measurements = Measurements()
        self._events = events
        self._registry = registry
        self._period_s = heartbeat_s
        self._offset_s = offset_s
        self._report = report
        self._on_change = on_change
        self.report_tier: Callable[[str], None] = lambda _key: None
        """Set by the pod's loads."""

    # Lease

    def register(self, info: PodInfo) -> None:
        self.is_alive = True
        self.epoch = self._registry.register_pod(info, self._events.now_s)

    def set_phase(self, phase: PodPhase) -> None:
        self._registry.set_phase(self.name, self.epoch, phase, self._events.now_s)

    def is_idle(self) -> bool:
        """True if no request has a reservation at the pod."""
        state = self._registry.state.pods[self.name]
        return not (state.slots_used or state.ongoing)

    def deregister(self) -> None:
        self._registry.deregister_pod(self.name, self.epoch)

    def let_lease_expire(self) -> None:
        """Send no more heartbeats: the process is dead."""
        end_s = self._events.now_s + LEASE_TTL_S
        self._registry.lose_lease_at(self.name, end_s)
        self._events.at(end_s, self._lease_expired)

    def _lease_expired(self, _: None) -> None:
        self._registry.sweep(self._events.now_s)
        self._on_change()

    # Heartbeats

    def plan_heartbeat(self) -> None:
        """Report at the next heartbeat."""
        if not self.is_heartbeat_planned:
            self.is_heartbeat_planned = True
            passed = int((self._events.now_s - self._offset_s) // self._period_s)
            self._events.at(self._offset_s + (passed + 1) * self._period_s, self._send_heartbeat)

    def _send_heartbeat(self, _: None) -> None:
        self.is_heartbeat_planned = False
        if self.is_alive:
            self._registry.heartbeat(self.name, self.epoch, self._report(), self._events.now_s)
            self._on_change()

    # Loads

    def claim_of(self, token: int) -> LoadClaim:
        return LoadClaim(token, self.epoch)

    async def claim(self, key: str, max_other_copies: int) -> LoadClaim:
        try:
            token = self._registry.claim_load(
                self.name, self.epoch, key, max_other_copies, self._events.now_s
            )
        except LeaseLost:
            return LoadClaim(None, self.epoch)
        if token is None:
            raise LoadRefused(f"the registry refused a claim for {key}: it loads, or has copies")
        return LoadClaim(token, self.epoch)

    async def start_load(self, key: str, claim: LoadClaim, source: Tier) -> None:
        if claim.token is not None:
            with suppress(LeaseLost):
                self._registry.start_load(
                    self.name, claim.epoch, key, claim.token, source, self._events.now_s
                )

    async def finish_load(self, key: str, claim: LoadClaim, memory_bytes: int) -> None:
        if claim.token is not None:
            with suppress(LeaseLost):
                self._registry.finish_load(
                    self.name, claim.epoch, key, claim.token, memory_bytes, self._events.now_s
                )

    async def fail_load(self, key: str, claim: LoadClaim, failure: LoadFailure) -> bool:
        if claim.token is None:
            return False
        try:
            self._registry.fail_load(
                self.name, claim.epoch, key, claim.token, failure, self._events.now_s
            )
        except (ClaimLost, LeaseLost):
            return False
        return True

    def set_tier(self, key: str, tier: Tier, size_bytes: int) -> None:
        """Publish the tier of the weights; 0 bytes: they are not at this pod."""
        if size_bytes == 0 and self.name not in self._registry.state.holders(key):
            return
        try:
            self._registry.set_tier(
                self.name, self.epoch, key, tier, size_bytes, self._events.now_s
            )
        except LeaseLost:
            return
