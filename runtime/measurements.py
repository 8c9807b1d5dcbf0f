"""Measurements of a pod since its last heartbeat, per model and measure."""

from __future__ import annotations

from typing import Final

from registry.domain.estimates import infer_measure, size_class
from registry.domain.pod import Samples, Stage

MAX_PER_HEARTBEAT: Final = 8
_MAX_VARIED: Final = 4096
_MAX_KEPT: Final = 8 * MAX_PER_HEARTBEAT
"""Samples of a measure above which the older ones are dropped; dropping at each add is slower."""


class Measurements:
    """The latest samples of each measure, as many as a heartbeat sends."""

    def __init__(self) -> None:
        self._samples: dict[str, dict[str, list[float]]] = {}
        self._varied: set[str] = set()
        """Models that had a request of another size class than the smallest."""

    def add(self, key: str, measure: str, seconds: float) -> None:
        """Add a sample of `measure` (a stage, or `load:<tier>`) of a model."""
        measures = self._samples.get(key)
        if measures is None:
            measures = self._samples[key] = {}
        samples = measures.get(measure)
        if samples is None:
            measures[measure] = [seconds]
            return
        samples.append(seconds)
        if len(samples) > _MAX_KEPT:
            del samples[:-MAX_PER_HEARTBEAT]

    def add_inference(self, key: str, seconds: float, body_bytes: int | None) -> None:
        """Add an inference's time, and under its size class as well where that says more.

        A model whose requests are all of the smallest class needs none: that is most models.
        """
        self.add(key, Stage.INFER, seconds)
        of_class = 0 if body_bytes is None else size_class(body_bytes)
        if of_class and key not in self._varied:
            if len(self._varied) >= _MAX_VARIED:
                self._varied.clear()
            self._varied.add(key)
        if of_class or (body_bytes is not None and key in self._varied):
            self.add(key, infer_measure(of_class), seconds)

    def take(self) -> tuple[Samples, ...]:
        taken: list[Samples] = []
        unused: list[str] = []
        for key, measures in self._samples.items():
            before = len(taken)
            for measure, samples in measures.items():
                if samples:
                    taken.append(Samples(key, measure, tuple(samples[-MAX_PER_HEARTBEAT:])))
                    samples.clear()
            if len(taken) == before:
                unused.append(key)
        for key in unused:  # the others keep their lists, which saves allocations
            del self._samples[key]
        return tuple(taken)

    def restore(self, taken: tuple[Samples, ...]) -> None:
        """Put back samples that could not be sent, unless there are newer ones."""
        for samples in taken:
            measures = self._samples.setdefault(samples.key, {})
            if not measures.get(samples.measure):
                measures[samples.measure] = list(samples.values_s)
