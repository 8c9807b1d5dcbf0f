"""A simulated pod: the stages of its requests, its device, and what it tells the registry.

The order is that of `runtime.serving.predict_service`: hold the model, preprocess, infer, let go,
postprocess. By proxy, the entry pod prepares and the predict pod holds and infers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from load.simulator.device import SimulatedDevice
from load.simulator.model_loading import ModelLoading
from registry.domain.model import Tier
from registry.domain.pod import LEASE_TTL_S, PodInfo, PodPhase
from runtime.registration.measurements import Measurements

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from load.simulator.cluster.plan import ClusterPlan, ModelPlan, PodPlan
    from load.simulator.event_queue import EventQueue
    from load.simulator.gateway import SimulatedGateway
    from load.simulator.memory_registry import MemoryRegistry
    from load.simulator.model_loading import SimulatedResident
    from load.simulator.node import SimulatedNode
    from load.simulator.simulated_request import SimulatedRequest


class SimulatedPod:
    """One pod. It lives from `start` to `kill` or to the end of its drain."""

    __slots__ = (
        "_answer", "_assets_ready_s", "_beat_offset_s", "_cluster", "_gateway", "_infer",
        "_is_beat_planned", "_kernel", "_registry", "_residents", "device", "epoch", "is_alive",
        "loading", "measurements", "name", "node", "plan",
    )  # fmt: skip

    def __init__(
        self,
        plan: PodPlan,
        node: SimulatedNode,
        *,
        cluster: ClusterPlan,
        kernel: EventQueue,
        registry: MemoryRegistry,
        gateway: SimulatedGateway,
        rng: random.Random,
    ) -> None:
        self.plan = plan
        self.name = plan.name
        self.node = node
        self.is_alive = False
        self.epoch = 0
        self._cluster = cluster
        self._kernel = kernel
        self._registry = registry
        self._gateway = gateway
        self._beat_offset_s = rng.random() * cluster.heartbeat_s
        self._is_beat_planned = False
        self._assets_ready_s: dict[str, float] = {}
        self.measurements = Measurements()
        self.device = SimulatedDevice(
            kernel,
            speed=plan.speed,
            jitter=cluster.jitter,
            rng=rng,
            done=self._inferred,
            late=self._late,
        )
        self._infer: Callable[[SimulatedRequest], None] = self.device.infer
        self._answer: Callable[[SimulatedRequest], None] = self.answer
        """Bound once: they are set for every request."""
        self.loading = ModelLoading(self, cluster, kernel, registry, gateway)
        self._residents = self.loading.residents.by_key

    # Life

    def start(self, _: None = None) -> None:
        """Register."""
        info = PodInfo(
            name=self.name,
            address=f"{self.name}:8080",
            node=self.node.name,
            device="simulated",
            slots=self.plan.slots,
            memory_bytes=self.plan.memory_bytes,
            link_bytes_per_s=self.node.plan.object_storage_bytes_per_s,
        )
        self.is_alive = True
        self.epoch = self._registry.register_pod(info, self._kernel.now_s)
        self._gateway.kick()

    def kill(self, _: None = None) -> None:
        """The process dies: its requests are lost, its lease ends by itself."""
        if not self.is_alive:
            return
        self._end()
        now_s = self._kernel.now_s
        until_s = now_s + LEASE_TTL_S
        self._registry.lose_lease_at(self.name, until_s)
        self._kernel.at(until_s, self._lease_is_over)
        self._gateway.pod_died(self)

    def _end(self) -> None:
        self._gateway.wasted_memory_byte_s += self.loading.residents.idle_byte_s
        self.is_alive = False

    def _lease_is_over(self, _: None) -> None:
        self._registry.sweep(self._kernel.now_s)
        self._gateway.kick()

    def drain(self, _: None = None) -> None:
        """Take nothing new, and leave when idle."""
        if self.is_alive:
            now_s = self._kernel.now_s
            self._registry.set_phase(self.name, self.epoch, PodPhase.DRAINING, now_s)
            self._leave_when_idle(None)

    def _leave_when_idle(self, _: None) -> None:
        if not self.is_alive:
            return
        state = self._registry.state.pods[self.name]
        if state.slots_used or state.ongoing:
            self._kernel.after(self._cluster.heartbeat_s, self._leave_when_idle)
            return
        self._end()
        self._registry.leave(self.name, self.epoch)
        self._gateway.kick()

    # Heartbeats: planned only when there is something to say

    def has_news(self) -> None:
        """Something is to be told with the next heartbeat."""
        if not self._is_beat_planned:
            self._is_beat_planned = True
            period_s, offset_s = self._cluster.heartbeat_s, self._beat_offset_s
            passed = int((self._kernel.now_s - offset_s) // period_s)
            self._kernel.at(offset_s + (passed + 1) * period_s, self._beat)

    def _beat(self, _: None) -> None:
        self._is_beat_planned = False
        if not self.is_alive:
            return
        self._registry.beat(
            self.name,
            self.epoch,
            self._kernel.now_s,
            used_bytes={
                Tier.DEVICE: self.loading.residents.used_bytes,
                Tier.HOST: self.node.host_bytes,
                Tier.DISK: self.node.disk_bytes,
            },
            loads_total=self.loading.total,
            samples=self.measurements.take(),
        )
        self._gateway.kick()

    def _sample(self, key: str, measure: str, seconds: float) -> None:
        self.measurements.add(key, measure, seconds)
        if not self._is_beat_planned:
            self.has_news()

    # A request's stages

    def take(self, flight: SimulatedRequest) -> None:
        """Be the entry pod of a request that the gateway has just sent."""
        plan = flight.plan
        flight.preprocess_s = plan.preprocess_s / self.plan.speed
        hop_s = self._cluster.gateway_hop_s
        if flight.predict is not self:
            self._prepare_and_forward(flight, hop_s)
            return
        resident = self._residents.get(plan.spec.key)
        if resident is None:
            self._kernel.after(hop_s, self._hold, flight)
            return
        flight.start = "warm"
        self.loading.residents.use(resident)
        flight.resident = resident
        self._kernel.after(hop_s + flight.preprocess_s, self._infer, flight)

    def _prepare_and_forward(self, flight: SimulatedRequest, hop_s: float) -> None:
        now_s, plan = self._kernel.now_s, flight.plan
        assets_s = self._assets_s(plan, now_s + hop_s)
        flight.load_s += assets_s
        way_s = plan.network_s + self._cluster.pod_hop_s / 2
        there_s = now_s + hop_s + assets_s + flight.preprocess_s + way_s
        self._kernel.at(there_s, flight.predict.take_inference, flight)

    def take_inference(self, flight: SimulatedRequest) -> None:
        """Be the predict pod of another pod's request."""
        if not self.is_alive:
            self._gateway.lost(flight)
            return
        self._hold(flight)

    def _assets_s(self, plan: ModelPlan, from_s: float) -> float:
        key = plan.spec.key
        if key in self._residents or plan.assets_s == 0:
            return 0.0
        ready_s = self._assets_ready_s.get(key)
        if ready_s is None:
            ready_s = self._assets_ready_s[key] = from_s + plan.assets_s
            self._kernel.at(ready_s, self._has_assets, plan)
            self._sample(key, "assets", plan.assets_s)
        return max(0.0, ready_s - from_s)

    def _has_assets(self, plan: ModelPlan) -> None:
        self.loading.tell_tier(plan.spec.key)

    def has_assets(self, key: str) -> bool:
        """Whether the small files of a model are here."""
        return self._assets_ready_s.get(key, self._kernel.now_s + 1) <= self._kernel.now_s

    def _hold(self, flight: SimulatedRequest) -> None:
        if not self.is_alive or flight.is_over:
            return
        flight.held_since_s = self._kernel.now_s
        resident = self._residents.get(flight.plan.spec.key)
        if resident is None:
            self.loading.wait_for(flight)
        else:
            self.loading.residents.use(resident)
            self.held(flight, resident, "warm")

    def held(self, flight: SimulatedRequest, resident: SimulatedResident, start: str) -> None:
        """The model is on the device, kept there for this request."""
        flight.resident = resident
        flight.start = start
        flight.load_s += self._kernel.now_s - flight.held_since_s
        if flight.entry is self and flight.preprocess_s:
            self._kernel.after(flight.preprocess_s, self._infer, flight)
        else:
            self.device.infer(flight)

    def _inferred(self, flight: SimulatedRequest, infer_s: float, share_s: float) -> None:
        if not self.is_alive:
            return
        self.loading.let_go(flight.resident)
        key = flight.plan.spec.key
        measurements = self.measurements
        measurements.add(key, "infer", infer_s)
        measurements.add(key, "share", share_s)
        if not self._is_beat_planned:
            self.has_news()
        if flight.is_over:
            return
        kernel, entry = self._kernel, flight.entry
        flight.infer_s = kernel.now_s - flight.at_device_s
        self._registry.end_inference(flight.arrival.id, self.name)
        flight.postprocess_s = flight.plan.postprocess_s / entry.plan.speed
        back_s = flight.postprocess_s + self._cluster.gateway_hop_s
        if entry is not self:
            back_s += self._cluster.pod_hop_s / 2
        kernel.after(back_s, entry._answer, flight)
        self._gateway.kick()

    def answer(self, flight: SimulatedRequest) -> None:
        """The answer arrives at the gateway."""
        if flight.is_over or not self.is_alive:
            return
        key = flight.plan.spec.key
        measurements = self.measurements
        measurements.add(key, "preprocess", flight.preprocess_s)
        measurements.add(key, "postprocess", flight.postprocess_s)
        if flight.predict is not self:
            measurements.add(key, "network", self._cluster.pod_hop_s + flight.plan.network_s)
        if not self._is_beat_planned:
            self.has_news()
        self._gateway.answered(flight)

    def _late(self, flight: SimulatedRequest) -> None:
        """The deadline passed while the request waited for the device."""
        self.loading.let_go(flight.resident)
        if not flight.is_over:
            self._gateway.failed(flight, 504, "the deadline passed while it waited for the device")
