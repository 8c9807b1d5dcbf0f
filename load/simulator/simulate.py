"""One run: a cluster, a trace and a policy in, records and a summary out."""

from __future__ import annotations

import random
from collections import defaultdict
from contextlib import nullcontext
from functools import partial
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from autoscaler.planning.pool_view import CopyUse
from load.errors import LoadError
from load.simulator.arrivals import rows
from load.simulator.event_queue import EventQueue
from load.simulator.gateway import SimulatedGateway
from load.simulator.gc_pause import collector_paused
from load.simulator.memory_registry import MemoryRegistry
from load.simulator.node import SimulatedNode
from load.simulator.pod import SimulatedPod
from load.simulator.results.records import Records
from load.simulator.results.summary import Summary
from registry.domain.model import Tier
from registry.domain.pod import Samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from load.schema import Trace
    from load.simulator.cluster.plan import ClusterPlan, ModelPlan, PodPlan
    from load.simulator.queue_options import QueueOptions
    from registry.domain.cluster import ClusterState
    from registry.domain.demand import QueueStats
    from registry.domain.model import ModelName, RoutingPolicy

ROWS_AT_ONCE: Final = 16_384
"""Arrivals between two record batches: what a run holds in memory."""
_ROWS_BETWEEN_LOOKS: Final = 64
"""Arrivals until `is_stopping` is asked again: some milliseconds of work."""
_BETWEEN_LOOKS_S: Final = 60.0
"""As much virtual time: heartbeats are work, too."""


class Actions(Protocol):
    """What an autoscaler may do and look at in a run."""

    def preload(self, model: ModelName, pod: str, tier: Tier = Tier.DEVICE) -> bool:
        """Begin to bring a model to a tier of a pod; False: it is there, on its way, or no pod."""

    @property
    def open_requests(self) -> int:
        """Requests that came and are not answered yet."""

    def demote(self, model: ModelName, pod: str, tier: Tier) -> bool:
        """Let a model sink to a tier; False: it is in use, not above the tier, or no pod."""

    def uses(self) -> Mapping[str, Mapping[str, CopyUse]]:
        """How the copies on devices are used, by key, then pod."""

    def waiting(self) -> Mapping[ModelName, QueueStats]:
        """The requests that wait in the gateway."""

    def start_pod(self, pod: str) -> bool:
        """Start a pod of the cluster as a new process; False: it lives, or no such pod."""

    def end_pod(self, pod: str) -> bool:
        """Let a pod answer what it has, then leave; False: it does not live."""


class SimulatedAutoscaler(Protocol):
    """Who hears of arrivals, and is asked every `every_s` of virtual time what to do.

    With `Queueing.plans_first` at most so often while requests wait, when something changed.
    """

    every_s: float

    def arrived(self, model: ModelName, now_s: float) -> None:
        """A request for a declared model came in."""

    def tick(self, state: ClusterState, now_s: float, actions: Actions) -> None:
        """Look at the cluster and act."""


def _never() -> bool:
    return False


class _Stopped(Exception):
    """The run ends where it is."""


class Simulation:
    """One run. Iterate it for the record batches; `summary` is whole when they are through."""

    def __init__(
        self,
        cluster: ClusterPlan,
        trace: Trace,
        policy: RoutingPolicy | None = None,
        seed: int = 0,
        *,
        autoscaler: SimulatedAutoscaler | None = None,
        queueing: QueueOptions | None = None,
        draws: Iterator[float] | None = None,
    ) -> None:
        """A run that has not begun; `policy` None: the models' own.

        `draws` are the arrivals' random numbers, as a live run had them; None: by the seed.

        Raises WrongTrace while it runs: the trace has other columns, or goes back in time; that,
        and what the trace itself raises, comes after the records of all that was answered before.
        """
        self.is_stopping: Callable[[], bool] = _never
        """Asked now and then; where it holds, the run ends with what was answered by then."""
        self.was_stopped = False
        self.summary = Summary()
        self.kernel = EventQueue()
        self.registry = MemoryRegistry()
        self._trace = trace
        self._records = Records()
        self._gateway = SimulatedGateway(
            self.kernel, self.registry, self._records.rows, self.summary,
            policy=policy, seed=seed, queueing=queueing, draws=draws,
        )  # fmt: skip
        self._autoscaler = autoscaler
        self._plans_first = queueing is not None and queueing.plans_first
        self._ticked_s = -inf
        self._cluster = cluster
        self._rng = random.Random(f"{seed}:world")
        self._build()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        kernel, gateway = self.kernel, self._gateway
        if self._autoscaler is not None:
            gateway.on_arrival = self._autoscaler.arrived
            if self._plans_first:
                gateway.before_placing = partial(self._tick_if_due, self._autoscaler)
            kernel.after(self._autoscaler.every_s, self._tick, self._autoscaler)
        kernel.after(_BETWEEN_LOOKS_S, self._look)
        broken: LoadError | None = None
        try:
            yield from self._batches()
        except _Stopped:
            pass
        except LoadError as error:  # of the trace: what came before is good
            broken = error
        self.summary.wasted_memory_byte_s = gateway.wasted_memory_byte_s + sum(
            pod.loading.residents.idle_byte_s for pod in gateway.pods.values() if pod.is_alive
        )
        yield self._take()
        if broken is not None:
            raise broken

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """All but what is left at the end."""
        for batch in self._trace:
            for offset in range(0, batch.num_rows, ROWS_AT_ONCE):
                self._play(batch.slice(offset, ROWS_AT_ONCE))
                yield self._take()
        while self._play_on():
            if self._records.rows:
                yield self._take()

    def _play(self, arrivals: pa.RecordBatch) -> None:
        """Let time pass until all of them have come."""
        coming = rows(arrivals)
        with self._paused():
            while some := tuple(islice(coming, _ROWS_BETWEEN_LOOKS)):
                self._heed()
                self.kernel.run_through(some, self._gateway.arrive)

    def _play_on(self) -> bool:
        """Let some more time pass; False: all are answered."""
        self._heed()
        with self._paused():
            return self.kernel.run_some(ROWS_AT_ONCE, until=lambda: self._gateway.open_total == 0)

    def _paused(self) -> AbstractContextManager[None]:
        """Requests leave no cycles; of autoscalers that is not known."""
        return collector_paused() if self._autoscaler is None else nullcontext()

    def _heed(self) -> None:
        """End the run here if it is to stop."""
        if self.is_stopping():
            self.was_stopped = True
            raise _Stopped

    def _look(self, _: object) -> None:
        self._heed()
        self.kernel.after(_BETWEEN_LOOKS_S, self._look)

    def _take(self) -> pa.RecordBatch:
        records = self._records.take()
        self.summary.add(records)
        return records

    def preload(self, model: ModelName, pod: str, tier: Tier = Tier.DEVICE) -> bool:
        """Begin to bring a model to a tier of a pod; False: it is there, on its way, or no pod."""
        at = self._at(model, pod)
        return at is not None and at[0].loading.preload(at[1], tier)

    @property
    def open_requests(self) -> int:
        """Requests that came and are not answered yet."""
        return self._gateway.open_total

    def demote(self, model: ModelName, pod: str, tier: Tier) -> bool:
        """Let a model sink to a tier; False: it is in use, not above the tier, or no pod."""
        at = self._at(model, pod)
        return at is not None and at[0].loading.demote(at[1], tier)

    def _at(self, model: ModelName, pod: str) -> tuple[SimulatedPod, ModelPlan] | None:
        found = self._gateway.models.get((model.namespace, model.name))
        alive = self._alive(pod)
        return None if found is None or alive is None else (alive, found[1])

    def uses(self) -> dict[str, dict[str, CopyUse]]:
        """How the copies on devices are used, by key, then pod."""
        found: defaultdict[str, dict[str, CopyUse]] = defaultdict(dict)
        for name, pod in self._gateway.pods.items():
            for key, each in pod.loading.residents.by_key.items() if pod.is_alive else ():
                found[key][name] = CopyUse(each.users, each.last_s, each.served)
        return found

    def waiting(self) -> dict[ModelName, QueueStats]:
        """The requests that wait in the gateway."""
        return self._gateway.waiting()

    def start_pod(self, pod: str) -> bool:
        """Start a pod of the cluster as a new process; False: it lives, or no such pod."""
        before = self._gateway.pods.get(pod)
        if before is None or before.is_alive:
            return False
        self._pod(before.plan, before.node).start()
        return True

    def end_pod(self, pod: str) -> bool:
        """Let a pod answer what it has, then leave; False: it does not live."""
        found = self._alive(pod)
        if found is not None:
            found.drain()
        return found is not None

    def _alive(self, name: str) -> SimulatedPod | None:
        pod = self._gateway.pods.get(name)
        return pod if pod is not None and pod.is_alive else None

    def _tick(self, autoscaler: SimulatedAutoscaler) -> None:
        self._heed()
        if not (self._plans_first and self._gateway.is_waiting):  # else it is asked at changes
            self._tick_if_due(autoscaler)
        self.kernel.after(autoscaler.every_s, self._tick, autoscaler)

    def _tick_if_due(self, autoscaler: SimulatedAutoscaler) -> None:
        now_s = self.kernel.now_s
        if now_s >= self._ticked_s + autoscaler.every_s:
            self._ticked_s = now_s
            autoscaler.tick(self.registry.state, now_s, self)

    def know(self, times_s: Mapping[str, Mapping[str, float]]) -> None:
        """Have the registry know models' times, by key and measure: they were in service before."""
        self.registry.measured(
            [
                Samples(key, measure, (seconds,))
                for key, measures in times_s.items()
                for measure, seconds in measures.items()
            ]
        )

    # The world at its start

    def _build(self) -> None:
        cluster, kernel, gateway = self._cluster, self.kernel, self._gateway
        self.registry.put_models([plan.spec for plan in cluster.models], 0.0)
        by_key = {plan.spec.key: plan for plan in cluster.models}
        for plan in cluster.models:
            name = plan.spec.name
            gateway.models[name] = (name, plan)
        for node_plan in cluster.nodes:
            node = SimulatedNode(kernel, node_plan, self._moved)
            for pod_plan in node_plan.pods:
                self._plan_life(self._pod(pod_plan, node))
        self._place(by_key.values())

    def _place(self, models: Iterable[ModelPlan]) -> None:
        """Put models where they are at the start.

        Those on devices come first: their copies are the ones to leave a disk that is full.
        """
        places = [(plan, *each) for plan in models for each in plan.at.items()]
        places.sort(key=lambda place: place[2] is not Tier.DEVICE)
        for plan, name_of_pod, tier in places:
            pod = self._gateway.pods[name_of_pod]
            if tier is Tier.DEVICE:
                pod.loading.put_at_start(plan)
            pod.node.put(plan, Tier.HOST if tier is Tier.HOST else Tier.DISK)

    def _pod(self, plan: PodPlan, node: SimulatedNode) -> SimulatedPod:
        """A pod in the place of any that had its name."""
        pod = SimulatedPod(
            plan, node,
            cluster=self._cluster, kernel=self.kernel, registry=self.registry,
            gateway=self._gateway, rng=random.Random(self._rng.random()),
        )  # fmt: skip
        self._gateway.pods[pod.name] = pod
        return pod

    def _moved(self, node: SimulatedNode, key: str) -> None:
        """A model came to a machine or went: its pods say so."""
        for plan in node.plan.pods:
            if (pod := self._gateway.pods.get(plan.name)) is not None:
                pod.loading.tell_tier(key)

    def _plan_life(self, pod: SimulatedPod) -> None:
        plan, kernel = pod.plan, self.kernel
        if plan.start_s == 0:
            pod.start()
        elif plan.start_s < inf:
            kernel.at(plan.start_s, self.start_pod, plan.name)
        if plan.kill_s is not None:
            kernel.at(plan.kill_s, self._kill, pod.name)
        if plan.drain_s is not None:
            kernel.at(plan.drain_s, self.end_pod, pod.name)

    def _kill(self, pod: str) -> None:
        self._gateway.pods[pod].kill()


def simulate(
    cluster: ClusterPlan,
    trace: Trace,
    policy: RoutingPolicy | None = None,
    seed: int = 0,
    *,
    autoscaler: SimulatedAutoscaler | None = None,
    queueing: QueueOptions | None = None,
    draws: Iterator[float] | None = None,
) -> Simulation:
    """The run of a trace under a policy: its record batches when iterated, and its summary."""
    return Simulation(
        cluster, trace, policy, seed, autoscaler=autoscaler, queueing=queueing, draws=draws
    )
