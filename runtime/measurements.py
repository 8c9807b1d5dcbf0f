"""What a pod measured since its last heartbeat, per model and measure."""

from __future__ import annotations

from typing import Final

from registry.pod import Samples

MOST_PER_HEARTBEAT: Final = 8
_KEPT: Final = 8 * MOST_PER_HEARTBEAT
"""Samples of a measure until the older ones are thrown away: seldom, since that costs."""


class Measurements:
    """The latest samples of each measure; older ones than a heartbeat carries are forgotten."""

    def __init__(self) -> None:
        self._samples: dict[str, dict[str, list[float]]] = {}

    def add(self, key: str, measure: str, seconds: float) -> None:
        """Remember one sample of `measure` (a stage, or `load:<tier>`) of a model."""
        measures = self._samples.get(key)
        if measures is None:
            measures = self._samples[key] = {}
        samples = measures.get(measure)
        if samples is None:
            measures[measure] = [seconds]
            return
        samples.append(seconds)
        if len(samples) > _KEPT:
            del samples[:-MOST_PER_HEARTBEAT]

    def take(self) -> tuple[Samples, ...]:
        """All samples since the last call."""
        taken = tuple(
            [
                Samples(key, measure, tuple(samples[-MOST_PER_HEARTBEAT:]))
                for key, measures in self._samples.items()
                for measure, samples in measures.items()
            ]
        )
        self._samples.clear()
        return taken

    def give_back(self, taken: tuple[Samples, ...]) -> None:
        """Keep samples that could not be sent, unless newer ones have come."""
        for samples in taken:
            measures = self._samples.setdefault(samples.key, {})
            measures.setdefault(samples.measure, list(samples.values_s))
