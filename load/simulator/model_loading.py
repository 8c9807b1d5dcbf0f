"""How a simulated pod brings models to its device, and which ones leave for them.

The order is the runtime's: claim, start from the nearest tier, fetch, make room, copy, finish. Who
leaves is `runtime.tiers.device_cache`; what a reload costs is `runtime.loading.reload_costs`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Final

from load.simulator.links import SharedLink
from registry.domain.model import Tier
from registry.domain.reservation import ClaimScope
from registry.errors import ClaimLost, LeaseLost
from runtime.loading.backoff import LoadFault, next_failure
from runtime.loading.reload_costs import ReloadCosts
from runtime.tiers.device_cache import CachedModel, DeviceCache
from runtime.tiers.eviction import POLICIES

if TYPE_CHECKING:
    from load.simulator.cluster.plan import ClusterPlan, ModelPlan
    from load.simulator.event_queue import EventQueue
    from load.simulator.gateway import SimulatedGateway
    from load.simulator.memory_registry import MemoryRegistry
    from load.simulator.pod import SimulatedPod
    from load.simulator.simulated_request import SimulatedRequest

PATIENCE_S: Final = 30.0
"""As in `runtime.loading.model_store`: how long a load waits for models in use."""


@dataclass(eq=False, slots=True)
class SimulatedResident(CachedModel):
    """A model on a simulated device."""

    plan: ModelPlan = field(kw_only=True)
    served: int = 0
    """Requests that have let it go."""
    last_s: float = -inf
    """When the last of them did."""

    @property
    def is_pinned(self) -> bool:
        """Whether its policy keeps it on the device."""
        return self.plan.spec.policy.pin


@dataclass(eq=False, slots=True)
class _SimulatedLoad:
    plan: ModelPlan
    token: int
    begun_s: float
    source: Tier = Tier.REMOTE
    waiting: list[SimulatedRequest] = field(default_factory=list)
    is_over: bool = False


class ModelLoading:
    """The models of one pod's device, and the loads on their way there."""

    def __init__(
        self,
        pod: SimulatedPod,
        cluster: ClusterPlan,
        kernel: EventQueue,
        registry: MemoryRegistry,
        gateway: SimulatedGateway,
    ) -> None:
        self._pod = pod
        self._kernel = kernel
        self._registry = registry
        self._gateway = gateway
        self._costs = ReloadCosts()
        self.residents: DeviceCache[SimulatedResident] = DeviceCache(
            pod.plan.memory_bytes, policy=POLICIES[cluster.eviction], reload_s=self._reload_s,
            now_s=kernel.now,
        )  # fmt: skip
        self._link = SharedLink(kernel, pod.plan.device_bytes_per_s)
        self._under_way: dict[str, _SimulatedLoad] = {}
        self._without_room: list[_SimulatedLoad] = []
        self.total = 0

    def _reload_s(self, key: str, memory_bytes: int) -> float:
        host_bytes = self._pod.node.plan.host_memory_bytes
        tier = Tier.HOST if memory_bytes <= host_bytes else Tier.DISK
        return self._costs.estimate_s(key, tier, memory_bytes)

    def wait_for(self, flight: SimulatedRequest) -> None:
        """Hold the model for the request once it is here; begins or joins its load."""
        load = self._under_way.get(flight.plan.spec.key)
        if load is None:
            load = self.begin(flight.plan, flight.token)
        elif flight.token > load.token:
            load.token = flight.token
        if load.is_over:
            self._gateway.failed(flight, 507, "the model does not fit the pod's memory")
        else:
            load.waiting.append(flight)

    def begin(self, plan: ModelPlan, token: int = 0) -> _SimulatedLoad:
        """Begin a load, with the gateway's claim or one of the pod's own."""
        key, now_s = plan.spec.key, self._kernel.now_s
        load = _SimulatedLoad(plan, token or self._claim(key), now_s)
        if plan.memory_bytes > self.residents.budget_bytes:
            self._never_fits(load)
            return load
        self._under_way[key] = load
        self._gateway.load_begun(key)
        load.source = self._pod.node.nearest(key)
        self._say_started(load)
        self._pod.node.used(key)
        if load.source is Tier.REMOTE and load.source not in plan.load_s:
            self._pod.node.fetch(plan, self._make_room, load)
        elif load.source is Tier.DISK and load.source not in plan.load_s:
            self._pod.node.disk_link.send(plan.size_bytes, self._make_room, load)
        else:
            self._make_room(load)
        return load

    def _claim(self, key: str) -> int:
        pod, now_s = self._pod, self._kernel.now_s
        try:
            return self._registry.claim_load(pod.name, pod.epoch, key, ClaimScope.POD, now_s) or 0
        except LeaseLost:
            return 0

    def _say_started(self, load: _SimulatedLoad) -> None:
        pod, key, now_s = self._pod, load.plan.spec.key, self._kernel.now_s
        for _ in range(2):
            if not load.token:
                return
            try:
                self._registry.start_load(pod.name, pod.epoch, key, load.token, load.source, now_s)
                return
            except ClaimLost:  # the gateway's claim was over before the request came
                load.token = self._claim(key)
            except LeaseLost:
                return

    def _never_fits(self, load: _SimulatedLoad) -> None:
        plan, now_s = load.plan, self._kernel.now_s
        load.is_over = True
        message = (
            f"{plan.spec.key} needs {plan.memory_bytes} bytes, the pod's memory budget is "
            f"{self.residents.budget_bytes} bytes"
        )
        record = self._registry.state.models.get(plan.spec.name)
        failure = next_failure(
            plan.spec.key,
            LoadFault("ModelLoadFailed", message, 507),
            previous=record.failure if record else None,
            now_s=now_s,
        )
        try:
            self._registry.fail_load(
                self._pod.name, self._pod.epoch, plan.spec.key, load.token, failure, now_s
            )
        except (ClaimLost, LeaseLost):
            return

    # Room

    def _make_room(self, load: _SimulatedLoad) -> None:
        if not self._try_room(load):
            self._without_room.append(load)
            self._kernel.after(PATIENCE_S, self._no_room, load)

    def _try_room(self, load: _SimulatedLoad) -> bool:
        plan = load.plan
        victims = self.residents.reserve(plan.spec.key, plan.memory_bytes)
        if victims is None:
            return False
        for key in victims:
            self._pod.node.demote(self._take_off(key).plan)
        if load.source in plan.load_s:
            self._kernel.after(plan.load_s[load.source], self._loaded, load)
        else:
            self._link.send(plan.memory_bytes, self._copied, load)
        return True

    def _copied(self, load: _SimulatedLoad) -> None:
        self._kernel.after(load.plan.load_fixed_s, self._loaded, load)

    def _no_room(self, load: _SimulatedLoad) -> None:
        if load not in self._without_room:
            return
        self._without_room.remove(load)
        load.is_over = True
        del self._under_way[load.plan.spec.key]
        self.tell_tier(load.plan.spec.key)
        for flight in load.waiting:
            self._gateway.refused(flight)

    def let_go(self, resident: SimulatedResident) -> None:
        """A request needs the model no more; whoever waits for room looks again."""
        self.residents.end_use(resident)
        resident.served += 1
        resident.last_s = self._kernel.now_s
        if resident.users == 0 and self._without_room:
            self._look_for_room()

    def _look_for_room(self) -> None:
        self._without_room = [load for load in self._without_room if not self._try_room(load)]

    def _take_off(self, key: str) -> SimulatedResident:
        """Free the memory of a model that nobody uses."""
        gone = self.residents.remove(key)
        self.tell_tier(key)
        return gone

    # The end of a load

    def _loaded(self, load: _SimulatedLoad) -> None:
        pod, plan, now_s = self._pod, load.plan, self._kernel.now_s
        if not pod.is_alive:
            return
        key = plan.spec.key
        del self._under_way[key]
        seconds = now_s - load.begun_s
        resident = SimulatedResident(key, plan.memory_bytes, plan=plan)
        self.residents.add(resident)
        if load.source is Tier.REMOTE and load.source in plan.load_s:
            pod.node.put(plan, Tier.DISK)
        self._say_finished(load)
        self._costs.observe(key, load.source, plan.memory_bytes, seconds)
        self.total += 1
        self._gateway.loaded(load.source, seconds)
        pod.measurements.add(key, f"load:{load.source}", seconds)
        pod.has_news()
        waiting = [flight for flight in load.waiting if not flight.is_over]
        if waiting:
            self.residents.use(resident, len(waiting))
        for flight in waiting:
            pod.held(flight, resident, load.source.value)
        self._gateway.kick()

    def _say_finished(self, load: _SimulatedLoad) -> None:
        pod, key, now_s = self._pod, load.plan.spec.key, self._kernel.now_s
        try:
            self._registry.finish_load(
                pod.name, pod.epoch, key, load.token, load.plan.memory_bytes, now_s
            )
        except ClaimLost:
            self.tell_tier(key)
        except LeaseLost:
            return

    def preload(self, plan: ModelPlan, tier: Tier = Tier.DEVICE) -> bool:
        """Bring a model to a tier for nobody; False: it is there or nearer, or on its way."""
        key = plan.spec.key
        if key in self.residents.by_key or key in self._under_way:
            return False
        if tier is Tier.DEVICE:
            self.begin(plan)
            return True
        return self._pod.node.bring(plan, tier)

    def demote(self, plan: ModelPlan, tier: Tier) -> bool:
        """Let a model sink to a tier; False: a request uses it, or it is not above the tier."""
        key, node = plan.spec.key, self._pod.node
        resident = self.residents.by_key.get(key)
        if resident is None:
            return key not in self._under_way and node.drop(key, tier)
        if resident.users or tier is Tier.DEVICE:
            return False
        self._take_off(key)
        if tier is Tier.HOST:
            node.demote(plan)
        else:
            node.drop(key, tier)
        self._pod.has_news()
        if self._without_room:
            self._look_for_room()
        self._gateway.kick()
        return True

    def put_at_start(self, plan: ModelPlan) -> None:
        """Have the model on the device from the start of the run."""
        self.residents.add(SimulatedResident(plan.spec.key, plan.memory_bytes, plan=plan))
        self.tell_tier(plan.spec.key)
        self._pod.has_news()

    def tell_tier(self, key: str) -> None:
        """Say where the model is here, unless its load is under way: that says it when it ends."""
        pod = self._pod
        if not pod.is_alive or key in self._under_way:
            return
        tier, size_bytes = pod.node.nearest(key), 0
        resident = self.residents.by_key.get(key)
        if resident is not None:
            tier, size_bytes = Tier.DEVICE, resident.memory_bytes
        elif tier is not Tier.REMOTE or pod.has_assets(key):
            size_bytes = 1 if tier is Tier.REMOTE else pod.node.bytes_of(key)
        before = self._registry.state.holders(key).get(pod.name)
        if before is None and size_bytes == 0:
            return
        try:
            self._registry.set_tier(pod.name, pod.epoch, key, tier, size_bytes, self._kernel.now_s)
        except LeaseLost:
            return
