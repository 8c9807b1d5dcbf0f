"""The devices that a plan weighs: those of the scheduler's group, and of them the few worth it.

So planning does not grow with the cluster. Zhang et al. 2025, section 8.5: large clusters are split
behind a load balancer. A pod's group follows from its name alone, so groups are disjoint, no pod is
in none, and none changes its group when others come and go.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

from workflows.scheduling.problem import Step

MAX_PER_REASON: Final = 4
"""Steps of one model that may run beside each other need a device each."""
PER_REASON: Final = 3
"""Devices kept for each reason. On random clusters of 8 devices plans of chains of 6 end 5 % later
than the best at 1, 0.9 % at 2, equal at 3."""


def candidate_devices(
    steps: Sequence[Step],
    *,
    free_s: Sequence[float],
    holders: Mapping[str, Collection[int]],
    outputs_at: Collection[int] = (),
) -> list[list[int]]:
    """By step, by device index.

    These are the emptiest holders of its model, the emptiest holders of several of the run's
    models, the devices of outputs that are there already, and the emptiest of all. `free_s` says by
    device when its queue is done, `holders` by model where it is loaded.
    """
    calls = Counter(step.model for step in steps)
    most = min(max(PER_REASON, *calls.values()), MAX_PER_REASON) if calls else PER_REASON

    def emptiest(devices: Collection[int]) -> list[int]:
        return nsmallest(most, devices, key=lambda device: (free_s[device], device))

    models = set(calls)
    held: dict[int, int] = {}
    for model in sorted(models):
        for device in holders.get(model, ()):
            held[device] = held.get(device, 0) + 1
    several = nsmallest(
        PER_REASON,
        [device for device, count in held.items() if count > 1],
        key=lambda device: (-held[device], free_s[device], device),
    )
    shared = {*several, *outputs_at, *emptiest(range(len(free_s)))}
    by_model = {model: sorted(shared.union(emptiest(holders.get(model, ())))) for model in models}
    return [by_model[step.model] for step in steps]


@dataclass(frozen=True, slots=True)
class PodGroup:
    """One group of several."""

    number: int = 0
    """From 0 on."""
    groups: int = 1

    def holds(self, pod: str) -> bool:
        if self.groups == 1:
            return True
        digest = hashlib.blake2b(pod.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % self.groups == self.number


WHOLE_POOL: Final = PodGroup()


def members(pods: Sequence[str], group: PodGroup) -> list[int]:
    """Positions of the group's pods; of all where it has none, since its runs must go somewhere."""
    own = [at for at, pod in enumerate(pods) if group.holds(pod)]
    return own or list(range(len(pods)))
