"""The compared clusters: each cell is drawn from its number alone.

Cells with an even hash are for choosing constants, the others for reporting.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Final

import numpy as np

from load.traces.parameters import Seed, zipf_shares

_REQUESTS: Final = (2000, 6000)
"""Fewest and most requests of one run, as far as expected."""
_MIN_LOADS: Final = 25
"""Loads of average size, one after the other, that a run at least lasts."""
_DESIGN: Final = Seed(14)
_MAX_MODELS: Final = 96
_LOADS_S: Final = (0.05, 4.0)
_INFERENCES_S: Final = (0.005, 0.25)
_MIN_MISS_SHARE: Final = 0.02
"""Share of requests that need a load where all models fit: drift and first loads."""


class Half(StrEnum):
    """Which cells run."""

    CHOOSE = "choose"
    REPORT = "report"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class RegretCell:
    """One cluster and its load. Times in seconds; a model of average size takes `load_s`."""

    number: int
    memory: float
    """Memory of all pods over the size of all models."""
    load_ratio: float
    """Load time over inference time."""
    infer_s: float
    slots: tuple[int, ...]
    """By pod, like `speeds` and `pod_memory`."""
    speeds: tuple[float, ...]
    pod_memory: tuple[float, ...]
    """In models of average size."""
    sizes: tuple[float, ...]
    """By model; their mean is 1. Loads take as long in proportion."""
    zipf: float
    arrivals: str
    """Arrival process: poisson, gamma or on-off."""
    cv: float
    """Coefficient of variation of gaps; 1 for poisson, and within the bursts of on-off."""
    drift_s: float | None
    """How often a random model becomes the most popular one."""
    utilisation: float
    """Share of the slots', links' and devices' time that a good policy would use, at most."""
    rate: float
    """Requests per second."""
    duration_s: float
    preprocess_s: float
    postprocess_s: float
    pod_hop_s: float
    deadline_s: float | None
    row_cost: float
    """Time of a further row of a batch, over that of the first."""
    remote_factor: float
    """Factor on load time of a model that is not on the machine's disk."""
    is_link_shared: bool
    """Simultaneous loads of a machine share its links; False: each takes its full time."""

    @property
    def name(self) -> str:
        return f"cell-{self.number}"

    @property
    def load_s(self) -> float:
        """Load time of a model of average size from the machine's disk."""
        return self.load_ratio * self.infer_s

    @property
    def half(self) -> Half:
        """The half that the cell belongs to."""
        is_even = sha256(str(self.number).encode()).digest()[0] % 2 == 0
        return Half.CHOOSE if is_even else Half.REPORT

    @property
    def trace(self) -> str:
        """The trace specification of the arrivals; a seed completes it."""
        rate, duration_s, more = self.rate, self.duration_s, ""
        if self.arrivals == "gamma":
            more = f",cv={self.cv:.6g}"
        elif self.arrivals == "on-off":
            length_s = duration_s / 20
            rate, more = 2 * rate, f",on={length_s:.4f}s,off={length_s:.4f}s"
        drift = "" if self.drift_s is None else f",drift={self.drift_s:.4f}s"
        return (
            f"{self.arrivals}:rate={rate:.6g},duration={duration_s:.4f}s,"
            f"models={len(self.sizes)},zipf={self.zipf:.3g}{more}{drift}"
        )


def cells(half: Half = Half.BOTH) -> Iterator[RegretCell]:
    """All cells of a half, without end."""
    number = 0
    while True:
        cell = drawn_cell(number)
        if half in {Half.BOTH, cell.half}:
            yield cell
        number += 1


def drawn_cell(number: int) -> RegretCell:
    rng = _DESIGN.derive("cell", number).rng()
    pods = int(rng.integers(2, 9))
    memory = _log_uniform(rng, 0.25, 1.5)
    slots, speeds, pod_memory = _pods(rng, pods)
    models = int(np.clip(round(sum(pod_memory) / memory), 3, _MAX_MODELS))
    sizes = _sizes(rng, models)
    # Every pod has room for the largest model.
    pod_memory = [max(memory * models * each / sum(pod_memory), *sizes) for each in pod_memory]
    load_ratio = _log_uniform(rng, 1.0, 400.0)
    infer_s = _log_uniform(
        rng,
        max(_INFERENCES_S[0], _LOADS_S[0] / load_ratio),
        max(_INFERENCES_S[0], min(_INFERENCES_S[1], _LOADS_S[1] / load_ratio)),
    )
    zipf = float(rng.uniform(0.0, 1.2))
    arrivals = str(rng.choice(["poisson", "gamma", "on-off"], p=[0.5, 0.3, 0.2]))
    cv = float(rng.uniform(2.0, 5.0)) if arrivals == "gamma" else 1.0
    drifts = float(rng.uniform(3, 30)) if rng.random() < 0.4 else None
    preprocess_s = infer_s * float(rng.choice([0.0, 0.2, 1.0], p=[0.4, 0.4, 0.2]))
    postprocess_s = infer_s * float(rng.choice([0.0, 0.2, 3.0], p=[0.4, 0.4, 0.2]))
    pod_hop_s = float(rng.choice([0.002, 0.02, 0.1], p=[0.6, 0.25, 0.15]))
    load_s, hold_s = load_ratio * infer_s, preprocess_s + infer_s + postprocess_s
    deadline_s = float(2 * hold_s + rng.uniform(0.5, 4.0) * load_s) if rng.random() < 0.35 else None
    row_cost = float(rng.uniform(0.1, 1.0))
    remote_factor = float(rng.choice([1.0, 3.0]))
    is_link_shared = bool(rng.random() < 0.65)
    utilisation = float(rng.uniform(0.05, 0.6))
    rate = utilisation * _capacity_rps(
        slots=slots,
        speeds=speeds,
        miss=_miss_share(zipf, sizes, sum(pod_memory)),
        hold_s=hold_s,
        infer_s=infer_s,
        load_s=load_s,
        row_cost=row_cost,
        is_link_shared=is_link_shared,
    )
    min_s = _MIN_LOADS * load_s * remote_factor
    duration_s = min(max(_REQUESTS[0] / rate, min_s), max(_REQUESTS[1] / rate, min_s))
    rate = min(rate, _REQUESTS[1] / duration_s)
    return RegretCell(
        number=number,
        memory=sum(pod_memory) / models,
        load_ratio=load_ratio,
        infer_s=infer_s,
        slots=tuple(slots),
        speeds=tuple(speeds),
        pod_memory=tuple(pod_memory),
        sizes=tuple(sizes),
        zipf=zipf,
        arrivals=arrivals,
        cv=cv,
        drift_s=None if drifts is None else duration_s / drifts,
        utilisation=utilisation,
        rate=rate,
        duration_s=duration_s,
        preprocess_s=preprocess_s,
        postprocess_s=postprocess_s,
        pod_hop_s=pod_hop_s,
        deadline_s=deadline_s,
        row_cost=row_cost,
        remote_factor=remote_factor,
        is_link_shared=is_link_shared,
    )


def _pods(rng: np.random.Generator, pods: int) -> tuple[list[int], list[float], list[float]]:
    """Slots, speeds, and memory in models; a quarter of the clusters have unlike pods."""
    slots = int(2 ** rng.uniform(0, 3.17))
    places = int(rng.integers(1, 9))
    if rng.random() >= 0.25:
        return [slots] * pods, [1.0] * pods, [float(places)] * pods
    return (
        [max(1, round(slots * factor)) for factor in rng.uniform(0.5, 2.0, pods).tolist()],
        np.exp(rng.uniform(-0.7, 0.7, pods)).tolist(),
        [max(1.0, places * factor) for factor in rng.uniform(0.5, 2.0, pods).tolist()],
    )


def _sizes(rng: np.random.Generator, models: int) -> list[float]:
    """Equal in six of ten clusters."""
    if rng.random() < 0.6:
        return [1.0] * models
    drawn = rng.lognormal(0.0, 0.7, models)
    sizes: list[float] = (drawn / drawn.mean()).tolist()
    return sizes


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _miss_share(zipf: float, sizes: Sequence[float], places: float) -> float:
    """Share of requests for models that do not fit, if the most popular ones are kept."""
    shares = zipf_shares(len(sizes), zipf)
    fits = np.cumsum(sizes) <= places
    return max(_MIN_MISS_SHARE, float(shares[~fits].sum()))


def _capacity_rps(
    *,
    slots: Sequence[int],
    speeds: Sequence[float],
    miss: float,
    hold_s: float,
    infer_s: float,
    load_s: float,
    row_cost: float,
    is_link_shared: bool,
) -> float:
    """Requests per second at which slots, devices or links would be busy all the time."""
    by_slot = [count * speed for count, speed in zip(slots, speeds, strict=True)]
    rows = [min(8, count) for count in slots]
    device_rps = sum(
        speed * count / (infer_s * (1 + (count - 1) * row_cost))
        for count, speed in zip(rows, speeds, strict=True)
    )
    limits = [sum(by_slot) / (hold_s + miss * load_s), device_rps]
    if is_link_shared:
        limits.append(len(slots) / (miss * load_s))
    return min(limits)
