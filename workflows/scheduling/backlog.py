"""The queue of one device, from the steps that are assigned to it and not over yet.

Zhang et al. 2025, section 5.1: steps of one model form a batch, up to the largest; a batch that has
begun takes no more. Times in seconds from now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from workflows.scheduling.costs import QueuedBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from workflows.scheduling.costs import ModelCosts


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
    steps: Sequence[AssignedStep],
    costs: Callable[[str], ModelCosts],
    *,
    foreign_s: float = 0.0,
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
