"""Loads of models to a simulated pod's device, and evictions from it, in virtual time.

The runtime's code orders the steps of a load (`runtime.loading.load`), evicts models and waits for
memory (`runtime.tiers.device_cache`). Here a step is a transfer over shared links.
"""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any, TypeAlias

from common.inference_protocol import PodError
from load.simulator.cluster.plan import ModelPlan, PodPlan
from load.simulator.event_queue import EventQueue, VirtualFuture, VirtualTasks
from load.simulator.pods.node import SharedLink, SimulatedNode
from load.simulator.pods.registry_agent import SimulatedRegistryAgent
from load.simulator.pods.simulated_request import PodListener, SimulatedRequest
from registry.domain.cluster import ClusterState
from registry.domain.model import LoadFailure, ModelSpec, Tier
from registry.domain.pod_state import ANY_COPIES
from runtime.errors import LoadFailed, status_of
from runtime.loading.load import Loads
from runtime.loading.load_queue import Load, LoadFailures
from runtime.storage.load_priority import LoadTicket
from runtime.tiers.device_cache import CachedModel, DeviceCache
from runtime.tiers.eviction import POLICIES, ReloadCosts, tier_after_eviction


@dataclass(eq=False, slots=True)
class SimulatedResident(CachedModel):
    """A model on a simulated device."""

    plan: ModelPlan = field(kw_only=True)

    @property
    def is_pinned(self) -> bool:
        return self.plan.spec.policy.pin


@dataclass(eq=False, slots=True)
class Waiting:
    """The requests that wait for a load of a model."""

    plan: ModelPlan
    requests: list[SimulatedRequest] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class OpenWeights:
    memory_bytes: int
    tier: Tier
    arrived: VirtualFuture | None
    """The end of their download."""


SimulatedLoad: TypeAlias = Load[Waiting]


class ModelLoading:
    """The models on one pod's device, and the loads in progress.

    For `runtime.loading.load` it is the clock, the copies of weights, and those who wait.
    """

    def __init__(
        self,
        plan: PodPlan,
        node: SimulatedNode,
        agent: SimulatedRegistryAgent,
        events: EventQueue,
        listener: PodListener,
        *,
        state: ClusterState,
        eviction: str,
        on_loaded: Callable[[SimulatedRequest, str], None],
    ) -> None:
        """`on_loaded` takes each request that waited for a load, and the tier it came from."""
        self._node = node
        self._agent = agent
        self._events = events
        self._listener = listener
        self._on_loaded = on_loaded
        self.on_removed: Callable[[str], None] = lambda _key: None
        self.tasks = VirtualTasks()
        self._device_link = SharedLink(events, plan.device_bytes_per_s)
        self._assets_ready_s: dict[str, float] = {}
        self._plans: dict[str, ModelPlan] = {}
        self._costs = ReloadCosts()
        self.residents: DeviceCache[SimulatedResident] = DeviceCache(
            plan.memory_bytes,
            policy=POLICIES[eviction],
            reload_s=self._reload_s,
            now_s=events.now,
            on_removed=self._removed,
        )
        agent.report_tier = self.publish_tier
        self.loads: Loads[Waiting, OpenWeights, SimulatedResident] = Loads(
            self.residents,
            clock=self,
            copies=self,
            registry=agent,
            ends=self,
            failures=LoadFailures(lambda: state, events.now),
            costs=self._costs,
            measurements=agent.measurements,
            state=lambda: state,
        )

    def _reload_s(self, key: str, memory_bytes: int) -> float:
        tier = tier_after_eviction(
            memory_bytes,
            host_bytes=self._node.bytes_in(Tier.HOST, key),
            host_budget_bytes=self._node.plan.host_memory_bytes,
            is_on_disk=self._node.bytes_in(Tier.DISK, key) > 0,
        )
        return self._costs.estimate_s(key, tier, memory_bytes)

    # Requests

    def load_for(self, request: SimulatedRequest) -> None:
        """Start the load of the request's model, or join it."""
        self._plans[request.plan.spec.key] = request.plan
        load = self.loads.join(request.plan.spec, request.token)
        load.waiting.requests.append(request)
        deadline_s = request.arrival.deadline_s
        if deadline_s is not None and deadline_s > self._events.now_s:
            self._events.at(deadline_s, self._deadline_passed, (load, request))

    def _deadline_passed(self, waiting: tuple[SimulatedLoad, SimulatedRequest]) -> None:
        load, request = waiting
        if request not in load.waiting.requests:
            return
        load.waiting.requests.remove(request)
        self.loads.leave(load)

    def release(self, resident: SimulatedResident) -> None:
        """End one request's use of the model."""
        self.residents.end_request(resident)

    def _removed(self, entry: SimulatedResident, _reason: str, evicted_for: str | None) -> None:
        self.publish_tier(entry.key)
        self.on_removed(entry.key)
        if evicted_for is not None:
            self._node.demote(entry.plan)

    # The clock of the loads

    def now_s(self) -> float:
        return self._events.now_s

    async def wait(
        self,
        ticket: LoadTicket,
        begin: Callable[[Callable[[], None]], None],
        timeout_s: float | None = None,
    ) -> bool:
        ended = self.tasks.future()
        begin(lambda: ended.set(True))
        if timeout_s is not None and not ended.is_set:
            self._events.after(timeout_s, ended.set, False)
        return await _unless_cancelled(ticket, ended)

    def spawn(self, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._events.after(0.0, lambda _: self.tasks.run(start()))

    def _work(self, seconds: float, cpu_s: float | None) -> VirtualFuture:
        """The end of work of so much CPU time; None: it keeps one core busy."""
        future = self.tasks.future()
        if self._node.cores is None:
            self._events.after(seconds, future.set, True)
        else:
            demand = 1.0 if cpu_s is None else cpu_s / max(seconds, 1e-9)
            self._node.cores.run(seconds, future.set, True, demand)
        return future

    # The copies of weights

    async def nearest_tier(self, key: str) -> Tier:
        return self._node.nearest(key)

    @asynccontextmanager
    async def open(self, load: SimulatedLoad, _base: object) -> AsyncIterator[OpenWeights]:
        """Begins a download, or waits for another pod's on the machine."""
        plan, tier, arrived = load.waiting.plan, load.source, None
        self.residents.check_fits(load.spec.key, plan.memory_bytes)  # before the download
        self._listener.on_load_start(load.spec.key)
        self._node.mark_used(load.spec.key)
        if tier is Tier.REMOTE and tier not in plan.load_s:
            arrived = self.tasks.future()
            if self._node.fetch(plan, arrived.set, True):
                load.ticket.has_started = True
            else:
                await _unless_cancelled(load.ticket, arrived)
        yield OpenWeights(plan.memory_bytes, tier, arrived)

    async def copy(self, load: SimulatedLoad, weights: OpenWeights) -> SimulatedResident:
        """Bytes are copied as they arrive: the slower of the two links takes the time."""
        plan, source, arrived = load.waiting.plan, weights.tier, weights.arrived
        load.ticket.has_started = True
        cpu_s = plan.load_cpu_s.get(source)
        if source in plan.load_s:
            await self._work(plan.load_s[source], cpu_s)
        else:
            copied = self.tasks.future()
            self._device_link.send(plan.memory_bytes, copied.set, True)
            if source is Tier.DISK:
                arrived = self.tasks.future()
                self._node.disk_link.send(plan.size_bytes, arrived.set, True)
            moved = None
            if cpu_s is not None and self._node.cores is not None:
                node = self._node.plan
                is_disk = source is Tier.DISK
                rate = node.disk_bytes_per_s if is_disk else node.object_storage_bytes_per_s
                moved_s = max(plan.size_bytes / rate, cpu_s)
                moved = self._work(moved_s, max(0.0, cpu_s - plan.load_fixed_s))
            await copied
            for each in (arrived, moved):
                if each is not None:
                    await each
            await self._work(plan.load_fixed_s, None)
        if source is Tier.REMOTE and source in plan.load_s:
            self._node.put(plan, Tier.DISK)
        return SimulatedResident(load.spec.key, plan.memory_bytes, plan=plan)

    # The ends of the loads

    def waiters(self, spec: ModelSpec) -> Waiting:
        return Waiting(self._plans[spec.key])

    def ended(
        self, load: SimulatedLoad, entry: SimulatedResident | None, error: PodError | None
    ) -> None:
        waiting, load.waiting.requests = load.waiting.requests, []
        if error is not None:
            for request in waiting:
                if not request.is_over:
                    self._listener.on_error(request, int(status_of(error)), str(error))
            return
        for request in waiting:
            if request.is_over and entry is not None:  # its entry pod died
                self.residents.end_use(entry)
            else:
                self._on_loaded(request, load.source.value)
        self._listener.on_change()

    def aborted(self, load: SimulatedLoad) -> None:
        """Nothing: the pod was killed, or the run ends with an error."""

    def unexpected(self, load: SimulatedLoad, error: Exception) -> LoadFailed:
        raise error

    def count(
        self,
        load: SimulatedLoad,
        outcome: str,
        *,
        seconds: float = 0.0,
        failure: LoadFailure | None = None,
    ) -> None:
        if outcome == "ok":
            self._listener.on_load_end(load.source, seconds)
            self._agent.plan_heartbeat()

    # Actions of an autoscaler, and the start of a run

    def preload(
        self, plan: ModelPlan, tier: Tier = Tier.DEVICE, max_other_copies: int = ANY_COPIES
    ) -> bool:
        """Load a model to a tier; False: it is there or on a nearer one, or being loaded."""
        key = plan.spec.key
        if key in self.residents.by_key or key in self.loads.running:
            return False
        if tier is not Tier.DEVICE:
            return self._node.preload(plan, tier)
        self._plans[key] = plan
        self.loads.join_preload(plan.spec, max_other_copies)
        return True

    def demote(self, plan: ModelPlan, tier: Tier) -> bool:
        """Move a model down to a tier; False: a request uses it, or it is not above the tier."""
        key = plan.spec.key
        resident = self.residents.by_key.get(key)
        if resident is None:
            return key not in self.loads.running and self._node.drop(key, tier)
        if resident.users or tier is Tier.DEVICE:
            return False
        self.residents.retire(key, "demoted")
        if tier is Tier.HOST:
            self._node.demote(plan)
        else:
            self._node.drop(key, tier)
        self._agent.plan_heartbeat()
        self._listener.on_change()
        return True

    def put_at_start(self, plan: ModelPlan) -> None:
        """Put the model on the device before the run starts."""
        self.residents.add(SimulatedResident(plan.spec.key, plan.memory_bytes, plan=plan))
        self.publish_tier(plan.spec.key)
        self._agent.plan_heartbeat()

    # Assets and tiers

    def fetch_assets_s(self, plan: ModelPlan, from_s: float) -> float:
        """Time from `from_s` until the tokenizer and the other small files are at the pod."""
        key = plan.spec.key
        if key in self.residents.by_key:
            return 0.0
        ready_s = self._assets_ready_s.get(key)
        if ready_s is None:
            ready_s = self._assets_ready_s[key] = from_s + plan.assets_s
            self._events.at(ready_s, self.publish_tier, key)
            self._agent.measurements.add(key, "assets", plan.assets_s)
            self._agent.plan_heartbeat()
        return max(0.0, ready_s - from_s)

    def publish_tier(self, key: str) -> None:
        """Publish the model's tier at this pod, unless a load is running and publishes it."""
        if not self._agent.is_alive or key in self.loads.running:
            return
        tier, size_bytes = self._node.nearest(key), 0
        resident = self.residents.by_key.get(key)
        if resident is not None:
            tier, size_bytes = Tier.DEVICE, resident.memory_bytes
        elif tier is not Tier.REMOTE:
            size_bytes = self._node.bytes_in(tier, key)
        elif self._assets_ready_s.get(key, inf) <= self._events.now_s:
            size_bytes = 1
        self._agent.set_tier(key, tier, size_bytes)


async def _unless_cancelled(ticket: LoadTicket, future: VirtualFuture) -> bool:
    """The future's result; raises LoadCancelled at once when the ticket is cancelled."""

    def on_change() -> None:
        if ticket.is_cancelled:
            future.set(False)

    ticket.add_listener(on_change)
    try:
        result = await future
    finally:
        ticket.remove_listener(on_change)
    ticket.raise_if_cancelled()
    return result
