"""What a pod measured since its last heartbeat, per model and measure."""

from __future__ import annotations

from typing import Final

from registry.domain.pod import Samples

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
        taken: list[Samples] = []
        quiet: list[str] = []
        for key, measures in self._samples.items():
            before = len(taken)
            for measure, samples in measures.items():
                if samples:
                    taken.append(Samples(key, measure, tuple(samples[-MOST_PER_HEARTBEAT:])))
                    samples.clear()
            if len(taken) == before:
                quiet.append(key)
        for key in quiet:  # those in use keep their lists, which are many to make anew
            del self._samples[key]
        return tuple(taken)

    def restore(self, taken: tuple[Samples, ...]) -> None:
        """Keep samples that could not be sent, unless newer ones have come."""
        for samples in taken:
            measures = self._samples.setdefault(samples.key, {})
            if not measures.get(samples.measure):
                measures[samples.measure] = list(samples.values_s)
