"""Cost of a model's inference by batch size on one kind of accelerator, and the best batch size.

`pilotlight profile` measures or imports profiles, pods refine them by live batches, and the batcher
reads them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Final

MEASURED: Final = "measured"
"""Source of a profile: a pod measured it on request."""
IN_SERVICE: Final = "in-service"
"""Source of a profile: a pod refined it by the times of live batches."""
IMPORTED: Final = "imported"
"""Source of a profile from a file that does not name one."""
PLACEMENT_FIELDS: Final = (
    "throughput_rps", "reserved_pct", "occupancy_pct", "mean_occupancy_pct", "sm_utilization_pct",
)  # fmt: skip
"""Fields of a point that only placement reads; written where measured."""
NEAR_PEAK_RATIO: Final = 0.95
"""Share of the highest throughput that counts as equally good."""


@dataclass(frozen=True, slots=True, order=True)
class ProfilePoint:
    """One batch size: the median time of its inference, and the memory used meanwhile."""

    rows: int
    latency_s: float
    memory_bytes: int | None = None
    """In addition to the weights; None where it was not measured."""
    throughput_rps: float | None = None
    """As measured; placement takes it instead of rows / latency. This and the following: None
    where not measured."""
    reserved_pct: float | None = None
    """Reserved memory with the weights, of that of the accelerator."""
    occupancy_pct: float | None = None
    """Highest achieved occupancy (Elvinger 2024, equation 5.3)."""
    mean_occupancy_pct: float | None = None
    """Its mean, weighted by time (section 5.3.1)."""
    sm_utilization_pct: float | None = None
    """Multiprocessors in use, weighted by time (section 5.3.2)."""

    @property
    def rows_per_s(self) -> float:
        """Throughput of consecutive batches of this size."""
        return self.rows / self.latency_s


@dataclass(frozen=True, slots=True, order=True)
class ShareFactor:
    """Measured: how many times as long a batch takes with a share of the accelerator."""

    share_pct: float
    rows: int
    factor: float


@dataclass(frozen=True, slots=True, order=True)
class PairFactor:
    """Measured: how many times as long batches take while a neighbour computes beside them."""

    neighbour: str
    """`namespace/name`."""
    factor: float


@dataclass(frozen=True, slots=True)
class Profile:
    """The batch sizes known for one generation of a model on accelerators of one product."""

    key: str
    product: str
    """Product of the accelerator; older versions wrote the device instead: `cpu` or `cuda:0`."""
    points: tuple[ProfilePoint, ...]
    """Ascending by rows, one per batch size."""
    limited_by: str = ""
    """Why no larger batch was measured: `throughput`, `memory`, `size`; empty: no reason."""
    source: str = MEASURED
    shares: tuple[ShareFactor, ...] = ()
    """Only what was measured: placement estimates other shares, and pairs."""
    pairs: tuple[PairFactor, ...] = ()
    fits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What plug-ins fitted to the points, shares and pairs, by plug-in; only they read it."""

    @property
    def best_rows(self) -> int:
        """The batch size to use; 1 without measurements."""
        return best_rows(self.points)


def best_rows(points: Sequence[ProfilePoint]) -> int:
    """The smallest batch whose throughput is near the highest: larger ones only add delay."""
    if not points:
        return 1
    highest = max(point.rows_per_s for point in points)
    return min(point.rows for point in points if point.rows_per_s >= NEAR_PEAK_RATIO * highest)


def busy_pct(point: ProfilePoint) -> float:
    """Busy multiprocessors or cores; all of them where not measured."""
    return 100.0 if point.sm_utilization_pct is None else point.sm_utilization_pct


def mean_busy_pct(points: Sequence[ProfilePoint]) -> float:
    """Over batch sizes."""
    return fmean(map(busy_pct, points)) if points else 100.0
