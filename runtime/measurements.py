"""What a pod measured since its last heartbeat, per model and measure."""

from __future__ import annotations

from collections import deque

from registry.pod import Samples

MOST_PER_HEARTBEAT = 8


class Measurements:
    """The latest samples of each measure; older ones than a heartbeat carries are forgotten."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str], deque[float]] = {}

    def add(self, key: str, measure: str, seconds: float) -> None:
        """Remember one sample of `measure` (a stage, or `load:<tier>`) of a model."""
        place = (key, measure)
        samples = self._samples.get(place)
        if samples is None:
            samples = self._samples[place] = deque(maxlen=MOST_PER_HEARTBEAT)
        samples.append(seconds)

    def take(self) -> tuple[Samples, ...]:
        """All samples since the last call."""
        taken = tuple(
            Samples(key, measure, tuple(values)) for (key, measure), values in self._samples.items()
        )
        self._samples.clear()
        return taken

    def give_back(self, taken: tuple[Samples, ...]) -> None:
        """Keep samples that could not be sent, unless newer ones have come."""
        for samples in taken:
            place = (samples.key, samples.measure)
            self._samples.setdefault(place, deque(samples.values_s, maxlen=MOST_PER_HEARTBEAT))
