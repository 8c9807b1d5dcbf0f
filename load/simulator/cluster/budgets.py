"""Checks that models fit the pods and machines of a cluster file, and the tiers they start on.

Sizes in bytes. The pods of a machine share its host memory and its disk, which have one copy of a
model for all of them.
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
"""Owner of a tier's budget, and its key in a cluster file."""
_MAX_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class ModelGroup:
    """The models of one entry of a cluster file, which differ in name only."""

    field: str
    """The entry's key, for error messages."""
    count: int
    size_bytes: int
    memory_bytes: int
    """Memory of one model on the device."""
    at: Mapping[str, Tier]
    """Their tier at the start, by pod."""

    def bytes_on(self, tier: Tier) -> int:
        """Bytes of one copy of each on a tier."""
        return self.count * (self.memory_bytes if tier is Tier.DEVICE else self.size_bytes)


def fit_problems(nodes: Sequence[NodePlan], groups: Sequence[ModelGroup]) -> list[str]:
    """Models that fit no pod or disk, pods that do not exist, and tiers with too many models.

    A model on a device counts only there, since its copy on the disk may be evicted.
    """
    return [
        *_too_large_for_pods(nodes, groups),
        *_too_large_for_disks(nodes, groups),
        *_unknown_pods(nodes, groups),
        *_overfull_tiers(nodes, groups),
    ]


def _too_large_for_pods(nodes: Sequence[NodePlan], groups: Sequence[ModelGroup]) -> list[str]:
    largest = max(pod.memory_bytes for node in nodes for pod in node.pods)
    return [
        f"{group.field}.memory: must fit the largest pod's budget of {largest} bytes, "
        f"was {group.memory_bytes}; raise the memory of a pod"
        for group in groups
        if group.memory_bytes > largest
    ]


def _too_large_for_disks(nodes: Sequence[NodePlan], groups: Sequence[ModelGroup]) -> list[str]:
    """Every pod with enough memory may load a model, and a load passes the machine's disk."""
    smallest = min(node.disk_bytes for node in nodes)
    problems = []
    for group in groups:
        if group.size_bytes <= smallest:
            continue
        small = [
            f"{node.name} ({node.disk_bytes:.0f} bytes)"
            for node in nodes
            if _exceeds_disk_of(group, node)
        ]
        if small:
            problems.append(
                f"{group.field}.size: must fit the disk of every machine that may load it, "
                f"was {group.size_bytes} bytes; raise disk of {_some(small)}"
            )
    return problems


def _exceeds_disk_of(group: ModelGroup, node: NodePlan) -> bool:
    return group.size_bytes > node.disk_bytes and any(
        pod.memory_bytes >= group.memory_bytes for pod in node.pods
    )


def _unknown_pods(nodes: Sequence[NodePlan], groups: Sequence[ModelGroup]) -> list[str]:
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
                    f"{group.field}.at: device needs a pod that runs from the start, {name} has "
                    f"start: {when}; use host or disk, or remove its start"
                )
    return problems


def _overfull_tiers(nodes: Sequence[NodePlan], groups: Sequence[ModelGroup]) -> list[str]:
    budgets = _budgets(nodes)
    node_of = {pod.name: node.name for node in nodes for pod in node.pods}
    placed: defaultdict[tuple[str, Tier], list[ModelGroup]] = defaultdict(list)
    for group in groups:
        for place in _places(group, node_of):
            placed[place].append(group)
    return [
        _overfull_message(place, budgets[place], there)
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
    """The pods and machines, with tier, that have the group at the start."""
    return dict.fromkeys(
        (pod if tier is Tier.DEVICE else node_of[pod], tier)
        for pod, tier in group.at.items()
        if pod in node_of
    )


def _overfull_message(
    place: tuple[str, Tier], budget_bytes: float, there: Sequence[ModelGroup]
) -> str:
    name, tier = place
    owner, key = _BUDGETS[tier]
    count = sum(group.count for group in there)
    return (
        f"{', '.join(f'{group.field}.at' for group in there)}: models at {tier} of {owner} "
        f"{name} must fit its {key} of {budget_bytes:.0f} bytes, was {count} "
        f"{'model' if count == 1 else 'models'} of {sum(group.bytes_on(tier) for group in there)} "
        f"bytes in total; place fewer there, or raise {key}"
    )


def _some(names: Iterable[str]) -> str:
    shown = sorted(names)
    more = f", … {len(shown)} in total" if len(shown) > _MAX_SHOWN else ""
    return ", ".join(shown[:_MAX_SHOWN]) + more
