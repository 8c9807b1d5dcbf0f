"""Simulated devices that run one batch at a time, as the scheduling policies see them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from load.simulator.event_queue import EventQueue
from registry.domain.cluster import ClusterState
from registry.domain.model import Tier
from registry.domain.pod import PodInfo
from registry.domain.pod_state import PodState
from research.simulated_workflows.constants import (
    DEVICES_PER_NODE,
    HOST_BYTES_PER_S,
    LINKS,
    MODELS,
    load_seconds,
)
from research.simulated_workflows.devices import SimulatedDevice, SimulatedRun, SimulatedStep
from workflows.plan.costs import (
    AssignedStep,
    Device,
    DeviceQueue,
    ModelCosts,
    device_queue,
    foreign_steps,
)

PlacedModels: TypeAlias = "tuple[frozenset[str], ...]"
"""The models on each device, in the order of the devices."""
COSTS = {
    name: ModelCosts(each.batch_s, each.max_batch, 0.0, each.output_bytes)
    for name, each in MODELS.items()
}


_IDLE: Final = device_queue((), COSTS.__getitem__)


def device_name(device: int) -> str:
    return f"device-{device:04}"


def node_of(device: int) -> str:
    return f"node-{device // DEVICES_PER_NODE:03}"


def transfer_s(step: SimulatedStep, device: int) -> float:
    """Time in which a step's output is moved to a device."""
    if step.device == device:
        return 0.0
    is_shared = node_of(step.device) == node_of(device)
    return LINKS.seconds(COSTS[step.model].output_bytes, 1, shares_memory=is_shared)


class SimulatedCluster:
    """All devices, and the runs that have steps on them."""

    def __init__(
        self,
        devices: int,
        memory_bytes: float,
        events: EventQueue,
        on_end: Callable[[SimulatedStep], None],
        host_bytes_per_s: float = HOST_BYTES_PER_S,
        *,
        schedulers: int = 1,
    ) -> None:
        self.events = events
        names = list(map(device_name, range(devices)))
        self.state = _cluster_state(names, memory_bytes, host_bytes_per_s)
        self.devices = [
            SimulatedDevice(
                index,
                memory_bytes,
                events,
                on_end,
                self.state,
                self.state.pods[name],
                host_bytes_per_s,
            )
            for index, name in enumerate(names)
        ]
        self.active: dict[int, SimulatedRun] = {}
        self._schedulers = schedulers

    def scheduler_of(self, run: int) -> int:
        """The scheduler that owns a run."""
        return run % self._schedulers

    def fill(self, placement: PlacedModels) -> None:
        """What is loaded before the first request."""
        for device, models in zip(self.devices, placement, strict=True):
            for model in sorted(models):
                device.hold(model)

    def loaded(self) -> PlacedModels:
        return tuple(frozenset(device.loaded) for device in self.devices)

    def assign(self, step: SimulatedStep, device: int) -> None:
        if step.device >= 0:
            self.devices[step.device].queue.remove(step)
        step.device = device
        self.devices[device].queue.append(step)
        self.devices[device].poke()

    def views(
        self,
        models: Iterable[str],
        *,
        only: Sequence[int] | None = None,
        queues: Sequence[DeviceQueue] | None = None,
    ) -> list[Device]:
        """Devices as policies see them, as `queues` says of their queues."""
        chosen = range(len(self.devices)) if only is None else only
        queues, wanted = queues or self.queues(None, chosen), list(models)
        found = []
        for index, queue in zip(chosen, queues, strict=True):
            device = self.devices[index]
            load_s = {model: device.load_s(model) for model in wanted}
            harm_s = {model: device.harm_s(model) for model in wanted}
            found.append(
                Device(
                    device_name(index),
                    node_of(index),
                    queue.batches,
                    queue.free_s,
                    load_s,
                    frozenset(device.loaded),
                    harm_s,
                )
            )
        return found

    def queues(self, run: SimulatedRun | None, only: Sequence[int]) -> list[DeviceQueue]:
        """Of these devices, without the steps of this run that are placed anew.

        Its scheduler knows of other schedulers' runs how many steps are sent, by model.
        """
        now_s = self.events.now_s
        ahead: dict[int, list[AssignedStep]] = defaultdict(list)
        for other in self.active.values():
            for number, (index, start_s) in other.ahead.items():
                if other is not run and self._is_known(other.number, run):
                    expected = AssignedStep(other.plan[number][0], max(0.0, start_s - now_s))
                    ahead[index].append(expected)
        queues = []
        for device in (self.devices[index] for index in only):
            if not (device.queue or device.running or device.index in ahead):
                queues.append(_IDLE)
                continue
            assigned = [
                AssignedStep(step.model, max(0.0, (step.ready_s or now_s) - now_s))
                for step in device.queue
                if self._is_known(step.run, run)
                and (run is None or step.run != run.number or step.ready_s is not None)
            ]
            running = [
                AssignedStep(step.model, 0.0, (step.begun_s or 0.0) - now_s)
                for step in device.running
                if self._is_known(step.run, run)
            ]
            foreign = [] if run is None else self._foreign_steps(device, run)
            steps = [*running, *foreign, *assigned, *ahead[device.index]]
            queues.append(device_queue(steps, COSTS.__getitem__))
        return queues

    def _is_known(self, other: int, run: SimulatedRun | None) -> bool:
        """Whether the scheduler of `run` executes the other run as well."""
        return run is None or self.scheduler_of(other) == self.scheduler_of(run.number)

    def _foreign_steps(self, device: SimulatedDevice, run: SimulatedRun) -> list[AssignedStep]:
        sent = [step for step in (*device.running, *device.queue) if step.ready_s is not None]
        queued = Counter(step.model for step in sent)
        own = Counter(step.model for step in sent if self._is_known(step.run, run))
        begun_s = [step.begun_s or 0.0 for step in device.running[:1]]
        now_s = self.events.now_s
        return foreign_steps(queued, own, min([now_s, *begun_s]) - now_s)


def _cluster_state(
    names: Iterable[str], memory_bytes: float, host_bytes_per_s: float
) -> ClusterState:
    """What production's state would say, for prices of evictions: empty pods.

    Sizes and times of all models are known, as after earlier loads and requests.
    """
    state = ClusterState()
    for name in names:
        state.pods[name] = PodState(PodInfo(name, "", "", memory_bytes=int(memory_bytes)))
    estimates = next(iter(state.pods.values())).estimates  # pods of one kind share them
    for model, figures in MODELS.items():
        state.residency.device_bytes[model] = int(figures.size_bytes)
        estimates.add(model, f"load:{Tier.HOST}", [load_seconds(model, host_bytes_per_s)])
        for measure in ("infer", "share"):
            estimates.add(model, measure, [figures.first_s])
    return state
