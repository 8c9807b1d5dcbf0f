"""The request and the cluster as a routing policy sees them, read-only.

`registry.domain.cluster.ClusterState`, which gateway and simulator use, implements `ClusterView`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from registry.domain.estimates import ModelEstimates
    from registry.domain.pod import PodInfo
    from registry.domain.residency_index import Residency


class PodView(Protocol):
    """One pod."""

    @property
    def name(self) -> str:
        """The last tie-break everywhere."""

    @property
    def info(self) -> PodInfo:
        """Facts that stay the same while the pod lives."""

    @property
    def slots(self) -> int:
        """Maximum number of requests for which it is the entry pod."""

    @property
    def slots_busy(self) -> int: ...

    @property
    def inferring(self) -> int:
        """Requests in the inference stage, local and proxied."""

    @property
    def is_accepting(self) -> bool:
        """True if requests may be sent to it: it is neither draining nor suspect."""

    @property
    def has_free_slot(self) -> bool:
        """True if it is accepting and a slot is free."""

    @property
    def free_bytes(self) -> int:
        """Device memory available to a load without an eviction."""


class ClusterView(Protocol):
    """The pods of a pool and the models on them."""

    @property
    def pods(self) -> Mapping[str, PodView]:
        """All pods of the pool by name."""

    def least_loaded(self, draw: float, excluded: Collection[str] = ()) -> PodView | None:
        """`pod_selection.least_loaded` of the pods with a free slot, except those in `excluded`."""

    def most_free_memory(self, draw: float, excluded: Collection[str] = ()) -> PodView | None:
        """`pod_selection.most_free_memory`, otherwise as `least_loaded`."""

    def warm(self, key: str) -> Sequence[PodView]:
        """Accepting pods that hold the model on their device."""

    def warming(self, key: str) -> Sequence[PodView]:
        """Accepting pods that load the model to their device."""

    def holders(self, key: str) -> Mapping[str, Residency]:
        """By pod, the tier at which it holds any part of the model."""

    def measured(self, key: str) -> ModelEstimates:
        """Estimates of the model's times."""


@dataclass(slots=True)
class RequestView:
    """One request. Times in seconds on the registry's clock."""

    key: str
    """Key of the model generation."""
    arrival_s: float
    draw: float = 0.0
    """A uniform number in [0, 1), drawn once per request: seeds every random choice."""
    sequence: int = 0
    """Number of requests that this gateway received before."""
    target_ongoing: int = 3
    ahead: int = 0
    """Requests of the same model queued before it."""
    stalled_s: float = 0.0
    """Time since its queue last became shorter; 0 if it is not queued."""
    deadline_s: float | None = None
    lost_s: float = 0.0
    """Time that earlier requests of its model lost for want of another copy (`ski_rental`)."""
