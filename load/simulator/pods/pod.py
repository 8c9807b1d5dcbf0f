"""A simulated pod: the stages of its requests, its device and its lifecycle.

The order is that of `runtime.serving.predict_service`: hold the model, preprocess, infer, release,
postprocess. With remote proxying, the entry pod pre- and postprocesses, and the predict pod holds
the model and infers.
"""

import random
from collections.abc import Callable

from load.simulator.cluster.plan import ClusterPlan, PodPlan
from load.simulator.event_queue import EventQueue
from load.simulator.memory_registry import MemoryRegistry
from load.simulator.pods.device import SimulatedDevice
from load.simulator.pods.model_loading import ModelLoading
from load.simulator.pods.node import SimulatedNode
from load.simulator.pods.registry_agent import SimulatedRegistryAgent
from load.simulator.pods.shared_processors import SharedGpu
from load.simulator.pods.simulated_request import PodListener, SimulatedRequest, Work
from registry.domain.model import Tier
from registry.domain.pod import PodInfo, PodPhase, PodReport
from runtime.measurements import at_average_pod


class SimulatedPod:
    """One pod, which runs from `start` until `kill` or the end of its drain."""

    def __init__(
        self,
        plan: PodPlan,
        node: SimulatedNode,
        *,
        cluster: ClusterPlan,
        events: EventQueue,
        registry: MemoryRegistry,
        listener: PodListener,
        rng: random.Random,
        gpu: SharedGpu | None = None,
    ) -> None:
        self.plan = plan
        self.name = plan.name
        self.node = node
        self._cluster = cluster
        self._events = events
        self._registry = registry
        self._listener = listener
        self.agent = SimulatedRegistryAgent(
            plan.name,
            events,
            registry,
            heartbeat_s=cluster.heartbeat_s,
            offset_s=rng.random() * cluster.heartbeat_s,
            report=self._report,
            on_change=listener.on_change,
        )
        self.device = SimulatedDevice(
            events,
            speed=plan.speed,
            jitter=cluster.jitter,
            rng=rng,
            done=self._inferred,
            late=self._late,
            plan=plan,
            gpu=gpu,
            cores=node.cores,
        )
        self.loading = ModelLoading(
            plan,
            node,
            self.agent,
            events,
            listener,
            state=registry.state,
            eviction=cluster.eviction,
            on_loaded=self._prepare,
        )
        self.loading.on_removed = self.device.forget
        self._residents = self.loading.residents.by_key
        self.work: Work = events.after if node.cores is None else node.cores.run
        """Work on the machine's cores."""
        # Bound once, since every request uses them.
        self._infer: Callable[[SimulatedRequest], None] = self.device.infer
        self.respond: Callable[[SimulatedRequest], None] = self._respond

    # Lifecycle

    def start(self, _: None = None) -> None:
        self.agent.register(
            PodInfo(
                name=self.name,
                address=f"{self.name}:8080",
                node=self.node.name,
                device="simulated",
                slots=self.plan.slots,
                memory_bytes=self.plan.memory_bytes,
                link_bytes_per_s=self.node.plan.object_storage_bytes_per_s,
                placed_model=self.plan.placed_model,
                place=self.name if self.plan.placed_model else "",
            )
        )
        self._listener.on_change()

    def kill(self, _: None = None) -> None:
        """End the process: its requests fail and its lease expires."""
        if self.agent.is_alive:
            self._end()
            self.agent.let_lease_expire()
            self._listener.on_pod_death(self)

    def drain(self, _: None = None) -> None:
        """Set the phase to draining, and deregister once idle."""
        if self.agent.is_alive:
            self.agent.set_phase(PodPhase.DRAINING)
            self._leave_when_idle(None)

    def _leave_when_idle(self, _: None) -> None:
        if not self.agent.is_alive:
            return
        if not self.agent.is_idle():
            self._events.after(self._cluster.heartbeat_s, self._leave_when_idle)
            return
        self._end()
        self.agent.deregister()
        self._listener.on_change()

    def _end(self) -> None:
        self._listener.on_pod_end(self.loading.residents.idle_byte_s)
        self.agent.is_alive = False
        self.loading.tasks.close()

    def _report(self) -> PodReport:
        used_bytes: dict[str, int] = {
            Tier.DEVICE: self.loading.residents.used_bytes,
            Tier.HOST: self.node.host_bytes,
            Tier.DISK: self.node.disk_bytes,
        }
        measurements = self.agent.measurements
        speed = measurements.speed.compare(self.name, self._registry.state.pods)
        return PodReport(
            used_bytes,
            at_average_pod(measurements.take(), speed),
            self.loading.loads.completed_total,
            speed=speed,
        )

    # Stages of a request

    @property
    def is_loading(self) -> bool:
        return bool(self.loading.loads.running)

    def take(self, request: SimulatedRequest) -> None:
        plan = request.plan
        request.preprocess_s = plan.preprocess_s / self.plan.speed
        hop_s = self._cluster.gateway_hop_s
        if request.predict is not self:
            self._prepare_and_forward(request, hop_s)
            return
        resident = self._residents.get(plan.spec.key)
        if resident is None:
            self.work(hop_s, self._hold_model, request)
            return
        request.start = "warm"
        self.loading.residents.use(resident)
        self.work(hop_s + request.preprocess_s, self._infer, request)

    def _prepare_and_forward(self, request: SimulatedRequest, hop_s: float) -> None:
        now_s, plan = self._events.now_s, request.plan
        assets_s = self.loading.fetch_assets_s(plan, now_s + hop_s)
        request.load_s += assets_s
        network_s = plan.network_s + self._cluster.pod_hop_s / 2
        arrival_s = now_s + hop_s + assets_s + request.preprocess_s + network_s
        if self.node.cores is None:
            self._events.at(arrival_s, request.predict.take_inference, request)
        else:
            self.work(arrival_s - now_s, request.predict.take_inference, request)

    def take_inference(self, request: SimulatedRequest) -> None:
        if self.agent.is_alive:
            self._hold_model(request)
        else:
            self._listener.on_unreachable(request)

    def _hold_model(self, request: SimulatedRequest) -> None:
        if not self.agent.is_alive or request.is_over:
            return
        request.model_needed_s = self._events.now_s
        resident = self._residents.get(request.plan.spec.key)
        if resident is None:
            self.loading.load_for(request)
        else:
            self.loading.residents.use(resident)
            self._prepare(request, "warm")

    def _prepare(self, request: SimulatedRequest, start: str) -> None:
        """Preprocess, once the model is on the device and held there for this request."""
        request.start = start
        request.load_s += self._events.now_s - request.model_needed_s
        if request.entry is self and request.preprocess_s:
            self.work(request.preprocess_s, self._infer, request)
        else:
            self.device.infer(request)

    def _inferred(self, request: SimulatedRequest, infer_s: float, share_s: float) -> None:
        agent = self.agent
        if not agent.is_alive:
            return
        key = request.plan.spec.key
        self.loading.release(self._residents[key])
        agent.measurements.add_inference(key, infer_s, request.body_bytes)
        if request.plan.is_continuous:  # as long as its output
            agent.measurements.add(key, "share", share_s)
        else:
            agent.measurements.add_share(key, infer_s, share_s)
        if not agent.is_heartbeat_planned:
            agent.plan_heartbeat()
        if request.is_over:
            return
        events, entry = self._events, request.entry
        request.infer_s = events.now_s - request.at_device_s
        self._registry.pods.end_inference(request.arrival.id, self.name)
        request.postprocess_s = request.plan.postprocess_s / entry.plan.speed
        back_s = request.postprocess_s + self._cluster.gateway_hop_s
        if entry is not self:
            back_s += self._cluster.pod_hop_s / 2
        entry.work(back_s, entry.respond, request)
        self._listener.on_change()

    def _respond(self, request: SimulatedRequest) -> None:
        agent = self.agent
        if request.is_over or not agent.is_alive:
            return
        key = request.plan.spec.key
        agent.measurements.add(key, "preprocess", request.preprocess_s)
        agent.measurements.add(key, "postprocess", request.postprocess_s)
        if request.predict is not self:
            network_s = self._cluster.pod_hop_s + request.plan.network_s
            agent.measurements.add(key, "network", network_s)
        if not agent.is_heartbeat_planned:
            agent.plan_heartbeat()
        self._listener.on_response(request)

    def _late(self, request: SimulatedRequest) -> None:
        """The deadline passed while the request waited for the device."""
        self.loading.release(self._residents[request.plan.spec.key])
        if not request.is_over:
            message = "the deadline passed while the request waited for the device"
            self._listener.on_error(request, 504, message)
