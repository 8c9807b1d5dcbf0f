"""For `static`: the placement of models that devices held longest.

Zhang et al. 2025, section 8: Triton Inference Server does not load by itself, so it is given the
placement that the speculative scheduler held longest. Here models which that placement lacks are
added where they were held longest.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from research.simulated_workflows.cluster import PlacedModels

_MAX_PLACEMENTS: Final = 10_000
"""Kept apart; beyond it the half held the shortest is forgotten."""


class HeldPlacements:
    """An account of time by placement. All placements have the same devices."""

    def __init__(self) -> None:
        self._held_s: dict[PlacedModels, float] = {}
        self._on_device_s: dict[tuple[str, int], float] = {}
        self._latest: PlacedModels = ()
        self._since_s = 0.0

    def observe(self, placement: PlacedModels, now_s: float) -> None:
        """The placement from now on."""
        passed_s = now_s - self._since_s
        if self._latest and passed_s > 0:
            self._held_s[self._latest] = self._held_s.get(self._latest, 0.0) + passed_s
            for device, models in enumerate(self._latest):
                for model in models:
                    place = model, device
                    self._on_device_s[place] = self._on_device_s.get(place, 0.0) + passed_s
        self._latest, self._since_s = placement, now_s
        if len(self._held_s) > _MAX_PLACEMENTS:
            kept = sorted(self._held_s.items(), key=lambda each: -each[1])[: _MAX_PLACEMENTS // 2]
            self._held_s = dict(kept)

    def fixed(
        self,
        models: Sequence[str],
        size_bytes: Callable[[str], float],
        memory_bytes: Sequence[float],
    ) -> PlacedModels:
        """The placement held longest, with each of `models` on some device where memory allows.

        A missing model takes free memory first, then that of models which other devices hold, too.
        """
        longest = max(
            self._held_s,
            key=lambda each: (self._held_s[each], list(map(sorted, each))),
            default=self._latest,
        )
        placement = [set(each) for each in longest]
        for model in models:
            if not any(model in each for each in placement):
                self._add(model, placement, size_bytes, memory_bytes)
        return tuple(map(frozenset, placement))

    def _add(
        self,
        model: str,
        placement: Sequence[set[str]],
        size_bytes: Callable[[str], float],
        memory_bytes: Sequence[float],
    ) -> None:
        def held_s(device: int) -> float:
            return self._on_device_s.get((model, device), 0.0)

        by_time = sorted(range(len(placement)), key=lambda device: (-held_s(device), device))
        for may_remove in (False, True):
            for device in by_time:
                free = memory_bytes[device] - sum(size_bytes(each) for each in placement[device])
                removed = []
                for other in self._spare(device, placement) if may_remove else ():
                    if free >= size_bytes(model):
                        break
                    removed.append(other)
                    free += size_bytes(other)
                if free >= size_bytes(model):
                    placement[device].difference_update(removed)
                    placement[device].add(model)
                    return

    def _spare(self, device: int, placement: Sequence[Collection[str]]) -> list[str]:
        """Models of a device that others hold, too; those first that it held the shortest."""
        shared = [
            model
            for model in placement[device]
            if any(model in each for at, each in enumerate(placement) if at != device)
        ]
        return sorted(
            shared, key=lambda model: (self._on_device_s.get((model, device), 0.0), model)
        )
