"""What a step costs on each device: device queues, transfers, tables of a scheduling problem.

Zhang et al. 2025, sections 5.1 and 5.3: steps of one model that are assigned to a device and not
over form a batch, up to the largest; a batch that has begun takes no more. A step joins a queued
batch of its model that is neither full nor begun; otherwise it waits for the whole queue. Times in
seconds from now.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import assert_never

from registry.domain.estimates import (
    MAX_CLASSES,
    ModelEstimates,
    TransferTier,
    class_bytes,
    transfer_measure,
    transfer_tier,
)
from workflows.plan.problem import Placement, SchedulingProblem, Step, kinds_of


@dataclass(frozen=True, slots=True)
class TransferCosts:
    """Of one tier."""

    fixed_s: float
    bytes_per_s: float

    def seconds(self, size_bytes: float) -> float:
        return self.fixed_s + size_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class Links:
    """By tier, as `registry.domain.estimates.transfer_tier` gives it."""

    sent: TransferCosts
    """Small outputs, which the scheduler sends: more than it takes it to send them to the device
    that computed them."""
    shared_memory: TransferCosts
    raw_bytes: TransferCosts

    def seconds(self, size_bytes: float, calls: int, *, shares_memory: bool) -> float:
        """Time of the outputs, of `size_bytes` each, of calls that ran as one batch."""
        tier = transfer_tier(size_bytes, shares_memory=shares_memory)
        match tier:
            case None:
                costs = self.sent
            case TransferTier.SHARED_MEMORY:
                costs = self.shared_memory
            case TransferTier.RAW_BYTES:
                costs = self.raw_bytes
            case TransferTier.SAME_POD:
                return 0.0
            case _:
                assert_never(tier)
        return costs.seconds(calls * size_bytes)


def measured_links(assumed: Links, measured: ModelEstimates) -> Links:
    """Costs by what pods have measured of each tier."""
    shared, raw = TransferTier.SHARED_MEMORY, TransferTier.RAW_BYTES
    return Links(
        assumed.sent,
        fitted(assumed.shared_memory, _points(shared, measured)),
        fitted(assumed.raw_bytes, _points(raw, measured)),
    )


def _points(tier: TransferTier, measured: ModelEstimates) -> list[tuple[float, float]]:
    """Size and median time by measured size class, ascending; a class stands for half its size."""
    found = []
    for of_class in range(MAX_CLASSES):
        known = measured.get(transfer_measure(tier, of_class))
        if known is not None:
            found.append((class_bytes(of_class) / 2, known.seconds))
    return found


def fitted(assumed: TransferCosts, points: Sequence[tuple[float, float]]) -> TransferCosts:
    """Costs through measured (bytes, seconds), ascending by bytes.

    One point says by how much all is slower than assumed; several give the rate between the
    smallest and the largest.
    """
    if not points:
        return assumed
    (least_bytes, least_s), (most_bytes, most_s) = points[0], points[-1]
    if len(points) == 1:
        factor = least_s / assumed.seconds(least_bytes)
        rate = assumed.bytes_per_s / factor if factor > 0.0 else inf
        return TransferCosts(assumed.fixed_s * factor, rate)
    if most_s <= least_s:
        return TransferCosts(most_s, inf)
    rate = (most_bytes - least_bytes) / (most_s - least_s)
    return TransferCosts(max(0.0, least_s - least_bytes / rate), rate)


@dataclass(frozen=True, slots=True)
class QueuedBatch:
    """Steps of one model that a device will run together."""

    model: str
    size: int
    start_s: float
    """Expected; not after now where it has begun."""
    end_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Device:
    """One worker: a pod with its device."""

    name: str
    memory: str
    """Devices with the same map each other's large outputs."""
    queue: Sequence[QueuedBatch] = ()
    free_s: float = 0.0
    """When the queue is done."""
    load_s: Mapping[str, float] = field(default_factory=dict)
    """By model that is not loaded, from where its weights are; infinite where it does not fit."""
    loaded: Collection[str] = frozenset()
    harm_s: Mapping[str, float] = field(default_factory=dict)
    """By model that is not loaded: time that requests of the models lose which its load evicts.
    It counts as the step's own, since no wait hides it."""


@dataclass(frozen=True, slots=True)
class ModelCosts:
    batch_s: Callable[[int], float]
    """Time of a batch by its size."""
    max_batch: int
    load_s: float
    """Where a device has no figure of its own."""
    output_bytes: float


def scheduling_problem(
    steps: Sequence[Step],
    devices: Sequence[Device],
    models: Mapping[str, ModelCosts],
    links: Links,
    *,
    allowed: Sequence[Collection[int]] | None = None,
    placed: Mapping[int, Placement] | None = None,
) -> SchedulingProblem:
    """Fill the tables for `steps`; a step runs on its `allowed` devices only (all by default)."""
    everywhere = [range(len(devices))] * len(steps)
    rows = [
        _rows(models[step.model], step, devices, may_run, ready_s)
        for step, may_run, ready_s in zip(
            steps, allowed or everywhere, _earliest_ready(steps, models, placed or {}), strict=True
        )
    ]

    def transfer_s(source: int, step: int, origin: int, device: int) -> float:
        size_bytes = models[steps[source].model].output_bytes
        is_shared = devices[origin].memory == devices[device].memory
        return links.seconds(size_bytes, steps[source].calls, shares_memory=is_shared)

    return SchedulingProblem(
        steps=steps,
        devices=[device.name for device in devices],
        free_s=[free for free, _, _ in rows],
        load_s=[load for _, load, _ in rows],
        compute_s=[compute for _, _, compute in rows],
        transfer_s=transfer_s,
        alike=kinds_of(steps),
        placed=placed or {},
    )


def _earliest_ready(
    steps: Sequence[Step], models: Mapping[str, ModelCosts], placed: Mapping[int, Placement]
) -> list[float]:
    """By step, when its inputs can be there if no step before it waits. Inputs come first."""
    ends: list[float] = []
    ready: list[float] = []
    for number, step in enumerate(steps):
        ready.append(max((ends[each] for each in step.inputs if each < number), default=0.0))
        end_s = ready[-1] + models[step.model].batch_s(step.calls)
        ends.append(placed[number].end_s if number in placed else end_s)
    return ready


def _rows(
    costs: ModelCosts,
    step: Step,
    devices: Sequence[Device],
    may_run: Collection[int],
    ready_s: float,
) -> tuple[list[float], list[float], list[float]]:
    """One step's free, load and compute times by device; infinite where it may not run."""
    free, load, compute = ([inf] * len(devices) for _ in range(3))
    for device in may_run:
        free[device], load[device], compute[device] = _turn(devices[device], step, costs, ready_s)
        if load[device] > 0.0:
            compute[device] += devices[device].harm_s.get(step.model, 0.0)
    return free, load, compute


def _turn(
    device: Device, step: Step, costs: ModelCosts, ready_s: float
) -> tuple[float, float, float]:
    """A step's free, load and compute times on a device, if its inputs are there at `ready_s`.

    It joins a queued batch of its model that begins later than that, or runs alone in the first
    pause of the queue that is long enough, whichever ends sooner.
    """
    alone_s, load_s = costs.batch_s(step.calls), load_seconds(device, step.model, costs)
    begin_s = earliest_s = max(device.free_s, load_s, ready_s)
    joined: QueuedBatch | None = None
    for batch in device.queue:
        has_room = batch.model == step.model and batch.size + step.calls <= costs.max_batch
        if joined is None and has_room and batch.start_s > 0.0 and batch.start_s >= ready_s:
            joined = batch
        if batch.start_s < begin_s + alone_s and batch.end_s > begin_s:
            begin_s = batch.end_s
    if joined is not None:
        together_s = costs.batch_s(joined.size + step.calls)
        if joined.start_s + together_s <= begin_s + alone_s:
            return joined.start_s, 0.0, together_s
    return begin_s if begin_s > earliest_s else device.free_s, load_s, alone_s


def load_seconds(device: Device, model: str, costs: ModelCosts) -> float:
    """0 where the model is loaded, or a batch of it runs before the queue is done, and loads it."""
    if model in device.loaded or any(
        batch.model == model and batch.start_s <= device.free_s for batch in device.queue
    ):
        return 0.0
    return device.load_s.get(model, costs.load_s)


@dataclass(frozen=True, slots=True)
class AssignedStep:
    """A step that a device runs or will run."""

    model: str
    ready_s: float
    """When its inputs are there; not after now where they are."""
    sent_s: float | None = None
    """When it was sent to the device, not after now; None: it was not."""


@dataclass(frozen=True, slots=True)
class DeviceQueue:
    batches: tuple[QueuedBatch, ...]
    free_s: float
    """When those are done that it runs without a pause; 0 for an idle device. A batch whose inputs
    come later leaves room before it, and may be joined."""


def device_queue(
    steps: Sequence[AssignedStep], costs: Callable[[str], ModelCosts], *, foreign_s: float = 0.0
) -> DeviceQueue:
    """Batches in the order in which the device will run them: what was sent first, first.

    `foreign_s`: work on the device that is no step, which comes first.
    """
    groups: list[list[AssignedStep]] = []
    for step in sorted(steps, key=_order):
        largest = costs(step.model).max_batch
        for position, group in enumerate(groups):
            is_same = group[0].model == step.model and len(group) < largest
            if is_same and (position > 0 or _may_join(group[0], step)):
                group.append(step)
                break
        else:
            groups.append([step])
    batches, free_s, later_s = [], foreign_s, 0.0
    for position, group in enumerate(groups):
        model = group[0].model
        ready_s = max(step.ready_s for step in group)
        start_s = max(free_s, ready_s, 0.0)
        is_next = group[0].sent_s is not None or ready_s <= free_s
        if not is_next:
            start_s = max(start_s, later_s)
        if position == 0 and foreign_s <= 0.0 and group[0].sent_s is not None:
            start_s = group[0].sent_s
        seconds = costs(model).batch_s(len(group))
        end_s = max(start_s + seconds, 0.0)
        batches.append(QueuedBatch(model, len(group), start_s, end_s))
        if is_next:
            free_s = end_s
        later_s = max(later_s, end_s)
    return DeviceQueue(tuple(batches), free_s)


def _order(step: AssignedStep) -> tuple[bool, float, str]:
    is_unsent = step.sent_s is None
    return is_unsent, step.ready_s if step.sent_s is None else step.sent_s, step.model


def foreign_steps(
    queued: Mapping[str, int], own: Mapping[str, int], sent_s: float
) -> list[AssignedStep]:
    """The steps at a device that other schedulers have sent, which only the registry knows.

    `queued`: by model, the steps of all schedulers at the device. `own`: those of this scheduler.
    `sent_s`: when the device can have begun the first of those queued, not after now.
    """
    return [
        AssignedStep(model, 0.0, sent_s)
        for model, count in sorted(queued.items())
        for _ in range(count - own.get(model, 0))
    ]


_TOGETHER_S = 0.002
"""Steps sent to an idle device within this time are one batch."""


def _may_join(first: AssignedStep, step: AssignedStep) -> bool:
    """Whether the device's first batch takes a step: it has not begun, or both began it."""
    if first.sent_s is None:
        return True
    return step.sent_s is not None and step.sent_s - first.sent_s <= _TOGETHER_S
