"""Checks that models fit the pods and machines of a cluster file, and the tiers they start on.

Sizes in bytes. The pods of a machine share its host memory and its disk, which have one copy of a
model for all of them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from load.simulator.cluster.plan import NodePlan
from registry.domain.model import Tier

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
        small = [
            f"{node.name} ({node.disk_bytes:.0f} bytes)"
            for node in (nodes if group.size_bytes > smallest else ())
            if group.size_bytes > node.disk_bytes
            and any(pod.memory_bytes >= group.memory_bytes for pod in node.pods)
        ]
        if small:
            problems.append(
                f"{group.field}.size: must fit the disk of every machine that may load it, "
                f"was {group.size_bytes} bytes; raise disk of {_some(small)}"
            )
    return problems


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
    """By pod for the device, by machine for the other tiers."""
    places: dict[tuple[str, Tier], tuple[Tier, str, str, float]] = {}
    for node in nodes:
        for pod in node.pods:
            for place in (
                (Tier.DEVICE, f"pod {pod.name}", "memory", pod.memory_bytes),
                (Tier.HOST, f"machine {node.name}", "host_memory", node.host_memory_bytes),
                (Tier.DISK, f"machine {node.name}", "disk", node.disk_bytes),
            ):
                places[pod.name, place[0]] = place
    placed: defaultdict[tuple[Tier, str, str, float], list[ModelGroup]] = defaultdict(list)
    for group in groups:
        for place in dict.fromkeys(places[at] for at in group.at.items() if at in places):
            placed[place].append(group)
    problems = []
    for (tier, owner, key, budget_bytes), there in placed.items():
        total = sum(group.bytes_on(tier) for group in there)
        count = sum(group.count for group in there)
        if total > budget_bytes:
            problems.append(
                f"{', '.join(f'{group.field}.at' for group in there)}: models at {tier} of {owner} "
                f"must fit its {key} of {budget_bytes:.0f} bytes, was {count} "
                f"{'model' if count == 1 else 'models'} of {total} bytes in total; place fewer "
                f"there, or raise {key}"
            )
    return problems


def _some(names: Iterable[str]) -> str:
    shown = sorted(names)
    more = f", … {len(shown)} in total" if len(shown) > _MAX_SHOWN else ""
    return ", ".join(shown[:_MAX_SHOWN]) + more
