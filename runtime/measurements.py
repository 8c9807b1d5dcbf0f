"""Measurements of a pod since its last heartbeat, per model and measure; how fast it computes."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from math import exp, log, pi, sqrt
from statistics import fmean, median_low
from typing import Final

from registry.domain.estimates import infer_measure, is_computed, size_class
from registry.domain.pod import AVERAGE, PodSpeed, Samples, Stage
from registry.domain.pod_state import PodState

MAX_PER_HEARTBEAT: Final = 8
_MAX_VARIED: Final = 4096
_COMPARED: Final = 256
"""Inferences of a pod that are compared: those of less than a minute at five requests a second."""
_MIN_COMPARED: Final = 8
"""So many new ones are worth a comparison, in pools of more pods as many as there are pods: each
reads the reports of all others."""
_MIN_OF_MODEL: Final = 2
"""The faster of two is no outlier, as a model's first inference often is."""
_MAX_REPORTED: Final = 32
"""Models, so that a heartbeat's report of them stays below its samples of as many."""
_MAX_PEERS: Final = 31
"""Those with a model in common first."""
_ROUNDS: Final = 4
_SAME_SPEED: Final = 0.05
"""Difference up to which pods count as equally fast, and a speed as unchanged: less changes no
decision, but makes each dearer."""
_MAX_KEPT: Final = 8 * MAX_PER_HEARTBEAT
"""Samples of a measure above which the older ones are dropped; dropping at each add is slower."""


class SpeedFit:
    """How fast a pod computes among those of its kind, from inferences that shared no batch."""

    def __init__(self) -> None:
        self._alone: deque[tuple[str, float]] = deque(maxlen=_COMPARED)
        """Models and times, in seconds."""
        self._new = 0
        """How many came since the last comparison."""
        self._reported = AVERAGE

    def add(self, key: str, infer_s: float) -> None:
        self._alone.append((key, infer_s))
        self._new += 1

    def compare(self, name: str, pods: Mapping[str, PodState]) -> PodSpeed:
        """What this pod reports of its speed; `pods`: the local copy."""
        if self._new < min(max(_MIN_COMPARED, len(pods)), _COMPARED):
            return self._reported
        self._new = 0
        by_model: defaultdict[str, list[float]] = defaultdict(list)
        for key, seconds in self._alone:
            by_model[key].append(seconds)
        counts = {key: n for key, times in by_model.items() if (n := len(times)) >= _MIN_OF_MODEL}
        most = sorted(counts, key=lambda key: -counts[key])[:_MAX_REPORTED]
        own_s = {key: median_low(by_model[key]) for key in most}
        alone_s = {}
        for key, seconds in own_s.items():
            alone_s[key] = self._reported.alone_s.get(key, 0.0)
            if abs(alone_s[key] / seconds - 1.0) > _SAME_SPEED / 2:
                alone_s[key] = float(f"{seconds:.3g}")
        slowness = self._reported.slowness
        if own := pods.get(name):
            peers = [each.speed for each in pods.values() if each.kind == own.kind]
            peers.remove(own.speed)
            shared = [key for key in most if any(key in each.alone_s for each in peers)]
            samples = [log(each / own_s[key]) for key in shared for each in by_model[key]]
            if len(samples) >= _MIN_COMPARED or not peers:
                slower = slower_than_median(PodSpeed(slowness, own_s), counts, peers)
                band = _SAME_SPEED
                if samples:  # and three standard errors of a difference of medians
                    squares = fmean([each * each for each in samples])
                    band += 3 * sqrt(pi * squares / len(samples))
                if abs(slower) < band:
                    slowness = 1.0
                elif abs(slower - log(slowness)) > band:
                    slowness = float(f"{exp(slower):.3g}")
        self._reported = PodSpeed(slowness, alone_s)
        return self._reported


def slower_than_median(
    own: PodSpeed, counts: Mapping[str, int], peers: Sequence[PodSpeed]
) -> float:
    """Logarithm of a pod's slowness, where that of the median pod is 0.

    Times y of pod p and model k are fit as log y[p, k] = a[p] + b[k], by alternating least squares
    from the a[p] that the pods report; a model weighs as many as `counts` has inferences of the
    pod's own, else 1. `peers`: the others of its kind.
    """
    peers = sorted(peers, key=lambda each: own.alone_s.keys().isdisjoint(each.alone_s))
    compared = [own, *peers[:_MAX_PEERS]]
    logs = [{key: log(seconds) for key, seconds in each.alone_s.items()} for each in compared]
    slower = [log(each.slowness) for each in compared]
    by_model = Counter(key for each in logs for key in each)
    for _ in range(_ROUNDS):
        sums: defaultdict[str, float] = defaultdict(float)
        for a, each in zip(slower, logs, strict=True):
            for key, y in each.items():
                sums[key] += y - a
        for pod, each in enumerate(logs):
            shared = {key: y for key, y in each.items() if by_model[key] > 1}
            if shared:
                found = [y - sums[key] / by_model[key] for key, y in shared.items()]
                slower[pod] = fmean(found, [counts.get(key, 1) for key in shared])
    return slower[0] - median_low([*slower, *(log(each.slowness) for each in peers[_MAX_PEERS:])])


class Measurements:
    """The latest samples of each measure, as many as a heartbeat sends."""

    def __init__(self) -> None:
        self._samples: dict[str, dict[str, list[float]]] = {}
        self._varied: set[str] = set()
        """Models that had a request of another size class than the smallest."""
        self.speed = SpeedFit()

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

    def add_share(self, key: str, infer_s: float, share_s: float) -> None:
        """Add a request's part of its batch's time; all of it where it was alone."""
        self.add(key, "share", share_s)
        if share_s >= infer_s > 0.0:
            self.speed.add(key, infer_s)

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


def at_average_pod(taken: tuple[Samples, ...], speed: PodSpeed) -> tuple[Samples, ...]:
    """The samples as an average pod would have measured them, so that a kind's pods share them."""
    if speed.slowness == 1.0:
        return taken
    return tuple(
        Samples(each.key, each.measure, tuple([value / speed.slowness for value in each.values_s]))
        if is_computed(each.measure)
        else each
        for each in taken
    )
