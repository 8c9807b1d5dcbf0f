"""Loads of models to a simulated pod's device, and evictions from it.

The order of a load is the runtime's: claim, start from the nearest tier, fetch, reserve memory,
copy, finish. Evictions are chosen by `runtime.tiers.device_cache`, reload costs estimated by
`runtime.loading.reload_costs`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Final

from load.simulator.pods.shared_link import SharedLink
from registry.domain.model import Tier
from runtime.errors import ModelTooLarge
from runtime.tiers.device_cache import CachedModel, DeviceCache
from runtime.tiers.eviction import POLICIES, ReloadCosts

if TYPE_CHECKING:
    from collections.abc import Callable

    from load.simulator.cluster.plan import ModelPlan, PodPlan
    from load.simulator.event_queue import EventQueue
    from load.simulator.pods.node import SimulatedNode
    from load.simulator.pods.registry_agent import SimulatedRegistryAgent
    from load.simulator.pods.simulated_request import PodListener, SimulatedRequest

MEMORY_TIMEOUT_S: Final = 30.0
"""As in `runtime.loading.model_store`: how long a load waits for memory that models in use hold."""


@dataclass(eq=False, slots=True)
class SimulatedResident(CachedModel):
    """A model on a simulated device."""

    plan: ModelPlan = field(kw_only=True)
    served: int = 0
    """Requests that have released it."""
    last_s: float = -inf
    """When the last of them did."""

    @property
    def is_pinned(self) -> bool:
        return self.plan.spec.policy.pin


@dataclass(eq=False, slots=True)
class _SimulatedLoad:
    plan: ModelPlan
    token: int
    start_s: float
    source: Tier = Tier.REMOTE
    waiting: list[SimulatedRequest] = field(default_factory=list)
    is_over: bool = False


class ModelLoading:
    """The models on one pod's device, and the loads under way to it."""

    def __init__(
        self,
        plan: PodPlan,
        node: SimulatedNode,
        agent: SimulatedRegistryAgent,
        events: EventQueue,
        listener: PodListener,
        *,
        eviction: str,
        on_loaded: Callable[[SimulatedRequest, str], None],
    ) -> None:
        """`on_loaded` takes each request that waited for a load, and the tier it came from."""
        self._node = node
        self._agent = agent
        self._events = events
        self._listener = listener
        self._on_loaded = on_loaded
        self._costs = ReloadCosts()
        self.residents: DeviceCache[SimulatedResident] = DeviceCache(
            plan.memory_bytes, policy=POLICIES[eviction], reload_s=self._reload_s, now_s=events.now,
            on_removed=self._removed,
        )  # fmt: skip
        self._device_link = SharedLink(events, plan.device_bytes_per_s)
        self._loads: dict[str, _SimulatedLoad] = {}
        self._waiting_for_memory: list[_SimulatedLoad] = []
        self._assets_ready_s: dict[str, float] = {}
        self.loads_total = 0

    def _reload_s(self, key: str, memory_bytes: int) -> float:
        host_bytes = self._node.plan.host_memory_bytes
        tier = Tier.HOST if memory_bytes <= host_bytes else Tier.DISK
        return self._costs.estimate_s(key, tier, memory_bytes)

    def load_for(self, request: SimulatedRequest) -> None:
        """Start the load of the request's model, or join it."""
        load = self._loads.get(request.plan.spec.key)
        if load is None:
            load = self.start_load(request.plan, request.token)
        elif request.token > load.token:
            load.token = request.token
        if load.is_over:
            self._listener.on_error(request, 507, "the model does not fit the pod's memory")
        else:
            load.waiting.append(request)

    def start_load(self, plan: ModelPlan, token: int = 0) -> _SimulatedLoad:
        """Start a load, with the gateway's claim or one of the pod's own."""
        key = plan.spec.key
        load = _SimulatedLoad(plan, token or self._agent.claim_load(key), self._events.now_s)
        if plan.memory_bytes > self.residents.budget_bytes:
            self._fail_too_large(load)
            return load
        self._loads[key] = load
        self._listener.on_load_start(key)
        load.source = source = self._node.nearest(key)
        load.token = self._agent.start_load(key, load.token, source)
        self._node.mark_used(key)
        if source is Tier.REMOTE and source not in plan.load_s:
            self._node.fetch(plan, self._reserve_memory, load)
        elif source is Tier.DISK and source not in plan.load_s:
            self._node.disk_link.send(plan.size_bytes, self._reserve_memory, load)
        else:
            self._reserve_memory(load)
        return load

    def _fail_too_large(self, load: _SimulatedLoad) -> None:
        load.is_over = True
        try:
            self.residents.check_fits(load.plan.spec.key, load.plan.memory_bytes)
        except ModelTooLarge as error:
            self._agent.fail_load(load.plan.spec, load.token, error)

    # Memory

    def _reserve_memory(self, load: _SimulatedLoad) -> None:
        if not self._try_to_reserve(load):
            self._waiting_for_memory.append(load)
            self._events.after(MEMORY_TIMEOUT_S, self._memory_timed_out, load)

    def _try_to_reserve(self, load: _SimulatedLoad) -> bool:
        plan = load.plan
        if not self.residents.try_reserve(plan.spec.key, plan.memory_bytes):
            return False
        if load.source in plan.load_s:
            self._events.after(plan.load_s[load.source], self._loaded, load)
        else:
            self._device_link.send(plan.memory_bytes, self._copied, load)
        return True

    def _copied(self, load: _SimulatedLoad) -> None:
        self._events.after(load.plan.load_fixed_s, self._loaded, load)

    def _memory_timed_out(self, load: _SimulatedLoad) -> None:
        if load not in self._waiting_for_memory:
            return
        self._waiting_for_memory.remove(load)
        load.is_over = True
        key = load.plan.spec.key
        del self._loads[key]
        self.publish_tier(key)
        for request in load.waiting:
            self._listener.on_no_memory(request)

    def release(self, resident: SimulatedResident) -> None:
        """A request is done with the model; loads that wait for memory try again."""
        self.residents.end_use(resident)
        resident.served += 1
        resident.last_s = self._events.now_s
        if resident.users == 0 and self._waiting_for_memory:
            self._retry_reservations()

    def _retry_reservations(self) -> None:
        self._waiting_for_memory = [
            load for load in self._waiting_for_memory if not self._try_to_reserve(load)
        ]

    def _removed(self, entry: SimulatedResident, _reason: str, evicted_for: str | None) -> None:
        self.publish_tier(entry.key)
        if evicted_for is not None:
            self._node.demote(entry.plan)

    # The end of a load

    def _loaded(self, load: _SimulatedLoad) -> None:
        agent, plan = self._agent, load.plan
        if not agent.is_alive:
            return
        key = plan.spec.key
        del self._loads[key]
        seconds = self._events.now_s - load.start_s
        resident = SimulatedResident(key, plan.memory_bytes, plan=plan)
        self.residents.add(resident)
        if load.source is Tier.REMOTE and load.source in plan.load_s:
            self._node.put(plan, Tier.DISK)
        if not agent.finish_load(key, load.token, plan.memory_bytes):
            self.publish_tier(key)
        self._costs.observe(key, load.source, plan.memory_bytes, seconds)
        self.loads_total += 1
        self._listener.on_load_end(load.source, seconds)
        agent.measurements.add(key, f"load:{load.source}", seconds)
        agent.plan_heartbeat()
        waiting = [request for request in load.waiting if not request.is_over]
        if waiting:
            self.residents.use(resident, len(waiting))
        for request in waiting:
            self._on_loaded(request, load.source.value)
        self._listener.on_change()

    # Orders of an autoscaler, and the start of a run

    def preload(self, plan: ModelPlan, tier: Tier = Tier.DEVICE) -> bool:
        """Load a model to a tier; False: it is there or on a nearer one, or being loaded."""
        key = plan.spec.key
        if key in self.residents.by_key or key in self._loads:
            return False
        if tier is Tier.DEVICE:
            self.start_load(plan)
            return True
        return self._node.preload(plan, tier)

    def demote(self, plan: ModelPlan, tier: Tier) -> bool:
        """Move a model down to a tier; False: a request uses it, or it is not above the tier."""
        key = plan.spec.key
        resident = self.residents.by_key.get(key)
        if resident is None:
            return key not in self._loads and self._node.drop(key, tier)
        if resident.users or tier is Tier.DEVICE:
            return False
        self.residents.retire(key, "demoted")
        if tier is Tier.HOST:
            self._node.demote(plan)
        else:
            self._node.drop(key, tier)
        self._agent.plan_heartbeat()
        if self._waiting_for_memory:
            self._retry_reservations()
        self._listener.on_change()
        return True

    def put_at_start(self, plan: ModelPlan) -> None:
        """Have the model on the device from the start of the run."""
        self.residents.add(SimulatedResident(plan.spec.key, plan.memory_bytes, plan=plan))
        self.publish_tier(plan.spec.key)
        self._agent.plan_heartbeat()

    # Assets and tiers

    def fetch_assets_s(self, plan: ModelPlan, from_s: float) -> float:
        """Time from `from_s` until the tokenizer and the other small files are at the pod."""
        key = plan.spec.key
        if key in self.residents.by_key or plan.assets_s == 0:
            return 0.0
        ready_s = self._assets_ready_s.get(key)
        if ready_s is None:
            ready_s = self._assets_ready_s[key] = from_s + plan.assets_s
            self._events.at(ready_s, self.publish_tier, key)
            self._agent.measurements.add(key, "assets", plan.assets_s)
            self._agent.plan_heartbeat()
        return max(0.0, ready_s - from_s)

    def publish_tier(self, key: str) -> None:
        """Publish where the model is at this pod, but for a load, whose end publishes it."""
        if not self._agent.is_alive or key in self._loads:
            return
        tier, size_bytes = self._node.nearest(key), 0
        resident = self.residents.by_key.get(key)
        if resident is not None:
            tier, size_bytes = Tier.DEVICE, resident.memory_bytes
        elif tier is not Tier.REMOTE:
            size_bytes = self._node.bytes_of(key)
        elif self._assets_ready_s.get(key, inf) <= self._events.now_s:
            size_bytes = 1
        self._agent.set_tier(key, tier, size_bytes)
