"""Whether what a cluster file asks for fits: every model somewhere, what is placed at its place.

Sizes in bytes. The pods of a machine share its host memory and its disk, which hold one copy of a
model however many of the pods have it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

from registry.domain.model import Tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from load.simulator.cluster.plan import NodePlan

_BUDGETS: Final = {
    Tier.DEVICE: ("pod", "memory"),
    Tier.HOST: ("machine", "host_memory"),
    Tier.DISK: ("machine", "disk"),
}
"""Who has the budget of a tier, and its key in a cluster file."""
_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class ModelGroup:
    """The models of one entry of a cluster file, alike but for their names."""

    field: str
    """The entry, as mistakes name it."""
    count: int
    size_bytes: int
    memory_bytes: int
    """On the device."""
    at: Mapping[str, Tier]
    """Where they are at the start, by pod."""

    def bytes_on(self, tier: Tier) -> int:
        """What one copy of each takes on a tier."""
        return self.count * (self.memory_bytes if tier is Tier.DEVICE else self.size_bytes)


def misfits(nodes: Sequence[NodePlan], groups: Sequence[ModelGroup]) -> list[str]:
    """Models that fit nowhere, places that do not exist, and those that hold less than they shall.

    What is on a device counts there alone: its copy on the disk leaves when others need the room.
    """
    return [
        *_larger_than_every_pod(nodes, groups),
        *_larger_than_a_disk(nodes, groups),
        *_nowhere(nodes, groups),
        *_overfull(nodes, groups),
    ]


def _larger_than_every_pod(nodes: Sequence[NodePlan], groups: Sequence[ModelGroup]) -> list[str]:
    largest = max(pod.memory_bytes for node in nodes for pod in node.pods)
    return [
        f"{group.field}.memory: must fit the largest pod's budget of {largest} bytes, "
        f"was {group.memory_bytes}; raise the memory of a pod"
        for group in groups
        if group.memory_bytes > largest
    ]


def _larger_than_a_disk(nodes: Sequence[NodePlan], groups: Sequence[ModelGroup]) -> list[str]:
    """A model may be sent to any pod that has the memory, and goes there by way of the disk."""
    smallest = min(node.disk_bytes for node in nodes)
    problems = []
    for group in groups:
        if group.size_bytes <= smallest:
            continue
        small = [
            f"{node.name} ({node.disk_bytes:.0f} bytes)"
            for node in nodes
            if _is_loaded_past_the_disk(group, node)
        ]
        if small:
            problems.append(
                f"{group.field}.size: must fit the disk of every machine that may load it, "
                f"was {group.size_bytes} bytes; raise disk of {_some(small)}"
            )
    return problems


def _is_loaded_past_the_disk(group: ModelGroup, node: NodePlan) -> bool:
    return group.size_bytes > node.disk_bytes and any(
        pod.memory_bytes >= group.memory_bytes for pod in node.pods
    )


def _nowhere(nodes: Sequence[NodePlan], groups: Sequence[ModelGroup]) -> list[str]:
    pods = {pod.name: pod for node in nodes for pod in node.pods}
    problems = []
    for group in groups:
        for name, tier in group.at.items():
            pod = pods.get(name)
            if pod is None:
                problems.append(f"{group.field}.at: must name a pod ({_some(pods)}), was {name!r}")
            elif tier is Tier.DEVICE and pod.start_s > 0:
                when = "never" if pod.start_s == inf else f"{pod.start_s:g} s"
                problems.append(
                    f"{group.field}.at: device must be that of a pod which is there from the "
                    f"start, {name} has start: {when}; say host or disk, or leave its start out"
                )
    return problems


def _overfull(nodes: Sequence[NodePlan], groups: Sequence[ModelGroup]) -> list[str]:
    budgets = _budgets(nodes)
    node_of = {pod.name: node.name for node in nodes for pod in node.pods}
    placed: defaultdict[tuple[str, Tier], list[ModelGroup]] = defaultdict(list)
    for group in groups:
        for place in _places(group, node_of):
            placed[place].append(group)
    return [
        _too_much(place, budgets[place], there)
        for place, there in placed.items()
        if sum(group.bytes_on(place[1]) for group in there) > budgets[place]
    ]


def _budgets(nodes: Sequence[NodePlan]) -> dict[tuple[str, Tier], float]:
    """Bytes by pod for the device, by machine for the other tiers."""
    budgets: dict[tuple[str, Tier], float] = {}
    for node in nodes:
        budgets[node.name, Tier.HOST] = node.host_memory_bytes
        budgets[node.name, Tier.DISK] = node.disk_bytes
        for pod in node.pods:
            budgets[pod.name, Tier.DEVICE] = pod.memory_bytes
    return budgets


def _places(group: ModelGroup, node_of: Mapping[str, str]) -> Iterable[tuple[str, Tier]]:
    """Whose tiers hold the group, each once."""
    return dict.fromkeys(
        (pod if tier is Tier.DEVICE else node_of[pod], tier)
        for pod, tier in group.at.items()
        if pod in node_of
    )


def _too_much(place: tuple[str, Tier], budget_bytes: float, there: Sequence[ModelGroup]) -> str:
    name, tier = place
    owner, key = _BUDGETS[tier]
    count = sum(group.count for group in there)
    return (
        f"{', '.join(f'{group.field}.at' for group in there)}: what is at {tier} of {owner} "
        f"{name} must fit its {key} of {budget_bytes:.0f} bytes, was {count} "
        f"{'model' if count == 1 else 'models'} of {sum(group.bytes_on(tier) for group in there)} "
        f"bytes in all; place fewer there, or raise {key}"
    )


def _some(names: Iterable[str]) -> str:
    shown = sorted(names)
    more = f", … {len(shown)} in all" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more
