"""The cluster of one run: machines, pods, registry, gateway, and the autoscaler's actions there."""

import random
from collections import defaultdict
from collections.abc import Iterator
from math import inf

from autoscaler.policy import CopyUse
from load.simulator.applications import SimulatedApplications
from load.simulator.cluster.plan import ClusterPlan, PodPlan
from load.simulator.event_queue import EventQueue
from load.simulator.gateway import QueueOptions, SimulatedGateway
from load.simulator.memory_registry import MemoryRegistry
from load.simulator.pods.node import SimulatedMachine, SimulatedNode
from load.simulator.pods.pod import SimulatedPod
from load.simulator.pods.shared_processors import SharedGpu, no_slowdown, overlap_slowdowns
from load.simulator.records import FinishedRequests
from load.simulator.run_summary import Summary
from registry.domain.application import AccuracyProfile
from registry.domain.demand import ExpectedRates, QueueStats
from registry.domain.model import ModelName, Tier
from registry.domain.pod import AcceleratorKind, Profile
from registry.domain.pod_state import ANY_COPIES
from registry.domain.records import PlacedPod, PlacedReplica, PlacementRecord


class SimulatedCluster:
    """One cluster. Actions return False where they have no effect."""

    def __init__(
        self,
        plan: ClusterPlan,
        events: EventQueue,
        rows: FinishedRequests,
        summary: Summary,
        *,
        policy: str | None,
        seed: int,
        queueing: QueueOptions | None,
        draws: Iterator[float] | None,
    ) -> None:
        self.registry = MemoryRegistry()
        self._plan = plan
        self._events = events
        self._pods: dict[str, SimulatedPod] = {}
        self._models = {each.spec.name: each for each in plan.models}
        self._rng = random.Random(f"{seed}:world")
        self._gpus: dict[tuple[str, str], SharedGpu] = {}
        """By node and name."""
        self.applications = (
            SimulatedApplications(
                events, self.registry.state, plan.applications, seed, self.preload
            )
            if plan.applications
            else None
        )
        self.gateway = SimulatedGateway(
            events,
            self.registry,
            rows,
            summary,
            pods=self._pods,
            models=self._models,
            policy=policy,
            seed=seed,
            queueing=queueing,
            draws=draws,
            applications=self.applications,
        )
        self._build()

    # What an autoscaler reads

    def uses(self) -> dict[str, dict[str, CopyUse]]:
        """How the copies on devices are used, by key, then pod."""
        found: defaultdict[str, dict[str, CopyUse]] = defaultdict(dict)
        for name, pod in self._pods.items():
            for key, each in pod.loading.residents.by_key.items() if pod.agent.is_alive else ():
                found[key][name] = CopyUse(each.users, each.last_s, each.served)
        return found

    def waiting(self) -> dict[ModelName, QueueStats]:
        """Requests queued in the gateway, by model."""
        return self.gateway.placer.queue_stats()

    def idle_byte_s(self) -> float:
        """Bytes of models that no request used, times seconds, of the pods that are alive."""
        pods = self._pods.values()
        return sum(pod.loading.residents.idle_byte_s for pod in pods if pod.agent.is_alive)

    # What an autoscaler does

    def publish_expected_rates(self, rates: ExpectedRates) -> None:
        """Make expected arrivals known to the gateway."""
        self.registry.state.expected_rates = rates

    def preload(
        self,
        model: ModelName,
        pod: str,
        tier: Tier = Tier.DEVICE,
        max_other_copies: int = ANY_COPIES,
    ) -> bool:
        """Load a model to a tier; False: it is there or being loaded, or there is no such pod."""
        plan, target = self._models.get(model), self._alive(pod)
        if plan is None or target is None:
            return False
        return target.loading.preload(plan, tier, max_other_copies)

    def demote(self, model: ModelName, pod: str, tier: Tier) -> bool:
        """Move a model down to a tier; False: in use, not above the tier, or no such pod."""
        plan, target = self._models.get(model), self._alive(pod)
        return plan is not None and target is not None and target.loading.demote(plan, tier)

    def start_pod(self, name: str) -> bool:
        """Start a pod of the plan as a new process; False: it is alive, or there is no such pod."""
        before = self._pods.get(name)
        if before is None or before.agent.is_alive:
            return False
        self._new_pod(before.plan, before.node).start()
        return True

    def end_pod(self, name: str) -> bool:
        """Drain a pod; False: it is not alive."""
        pod = self._alive(name)
        if pod is not None:
            pod.drain()
        return pod is not None

    def _alive(self, name: str) -> SimulatedPod | None:
        pod = self._pods.get(name)
        return pod if pod is not None and pod.agent.is_alive else None

    # The start

    def _build(self) -> None:
        self.registry.put_models([plan.spec for plan in self._plan.models], 0.0)
        machines: dict[str, SimulatedMachine] = {}
        for node_plan in self._plan.nodes:
            machine = machines.setdefault(
                node_plan.machine or node_plan.name, SimulatedMachine(self._events, node_plan)
            )
            node = SimulatedNode(self._events, node_plan, machine, self._publish_tier)
            for pod_plan in node_plan.pods:
                self._plan_life(self._new_pod(pod_plan, node))
        self._place_models()
        self._place_pods()
        self._declare_applications()

    def _declare_applications(self) -> None:
        """With the accuracies and times that `pilotlight profile` would have measured."""
        state = self.registry.state
        estimates = state.measurements.at(AcceleratorKind())
        for each in self._plan.applications:
            spec = each.spec
            state.applications[spec.name] = spec
            for variant, confusion in each.confusions.items():
                name = ModelName(spec.name.namespace, variant)
                key = state.models[name].serving.key
                state.accuracies[name] = AccuracyProfile(key, spec.classes, confusion)
                model = self._models[name]
                points = model.infer if model.is_batched else model.infer[:1]
                self.registry.models.put_profile(Profile(key, "", points))
                for measure, seconds in (
                    ("infer", model.infer_s(1)),
                    ("preprocess", model.preprocess_s),
                    ("postprocess", model.postprocess_s),
                ):
                    estimates.add(key, measure, (seconds,))
        state.models_version += 1

    def _place_models(self) -> None:
        """Put models on their tiers, first those on devices: a full disk evicts their copies."""
        places = [(plan, *each) for plan in self._models.values() for each in plan.at.items()]
        places.sort(key=lambda place: place[2] is not Tier.DEVICE)
        for plan, pod_name, tier in places:
            pod = self._pods[pod_name]
            if tier is Tier.DEVICE:
                pod.loading.put_at_start(plan)
            pod.node.put(plan, Tier.HOST if tier is Tier.HOST else Tier.DISK)

    def _new_pod(self, plan: PodPlan, node: SimulatedNode) -> SimulatedPod:
        """A pod in the place of any earlier one of its name."""
        pod = self._pods[plan.name] = SimulatedPod(
            plan,
            node,
            cluster=self._plan,
            events=self._events,
            registry=self.registry,
            listener=self.gateway,
            rng=random.Random(self._rng.random()),
            gpu=self._gpu(node.name, plan.gpu) if plan.gpu else None,
        )
        return pod

    def _gpu(self, node: str, name: str) -> SharedGpu:
        gpu = self._gpus.get((node, name))
        if gpu is None:
            gpu = self._gpus[node, name] = SharedGpu(
                self._events,
                overlap_slowdowns if self._plan.interference == "overlap" else no_slowdown,
            )
        return gpu

    def _place_pods(self) -> None:
        """Record the batch caps of placed pods, as the autoscaler's plan does."""
        pods = tuple(
            PlacedPod(
                each.name,
                PlacedReplica(each.placed_model, each.gpu, each.batch_cap or 1, each.share_pct),
                0.0,
            )
            for node in self._plan.nodes
            for each in node.pods
            if each.placed_model
        )
        if pods:
            self.registry.state.placement = PlacementRecord("given", "", 0.0, pods=pods)

    def _publish_tier(self, node: SimulatedNode, key: str) -> None:
        for plan in node.plan.pods:
            if (pod := self._pods.get(plan.name)) is not None:
                pod.loading.publish_tier(key)

    def _plan_life(self, pod: SimulatedPod) -> None:
        plan, events = pod.plan, self._events
        if plan.start_s == 0:
            pod.start()
        elif plan.start_s < inf:
            events.at(plan.start_s, self.start_pod, plan.name)
        if plan.kill_s is not None:
            events.at(plan.kill_s, self._kill, plan.name)
        if plan.drain_s is not None:
            events.at(plan.drain_s, self.end_pod, plan.name)

    def _kill(self, name: str) -> None:
        self._pods[name].kill()
