"""What a routing policy may see: the request and the cluster, read-only.

`registry.domain.cluster.ClusterState` fits `ClusterView`; the simulator's own state does as well.
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
    """One pod, as a policy sees it."""

    @property
    def name(self) -> str:
        """Its name, the last tie-break everywhere."""

    @property
    def info(self) -> PodInfo:
        """What does not change while it lives."""

    @property
    def slots(self) -> int:
        """How many requests it may be the entry pod of at once."""

    @property
    def slots_busy(self) -> int:
        """How many of them are taken."""

    @property
    def inferring(self) -> int:
        """Requests in their inference stage there, local and proxied."""

    @property
    def is_accepting(self) -> bool:
        """Whether requests may be sent to it at all."""

    @property
    def has_free_slot(self) -> bool:
        """Whether it can be an entry pod now."""

    @property
    def free_bytes(self) -> int:
        """Device memory a load can take without an eviction."""


class ClusterView(Protocol):
    """The pool, as a policy sees it."""

    @property
    def pods(self) -> Mapping[str, PodView]:
        """All pods by name."""

    def least_loaded(self, draw: float, excluded: Collection[str] = ()) -> PodView | None:
        """The least loaded pod with a free slot that is not `excluded`."""

    def most_free_memory(self, draw: float, excluded: Collection[str] = ()) -> PodView | None:
        """The pod with a free slot and the most free memory, then as `least_loaded`."""

    def warm(self, key: str) -> Sequence[PodView]:
        """Accepting pods that hold the model on their device."""

    def warming(self, key: str) -> Sequence[PodView]:
        """Accepting pods to whose device a load of the model is under way."""

    def holders(self, key: str) -> Mapping[str, Residency]:
        """Per pod that has anything of the model: where it is."""

    def measured(self, key: str) -> ModelEstimates:
        """What is known of the model's times."""


@dataclass(slots=True)
class RequestView:
    """One request, as a policy sees it. Times in seconds on the registry's clock."""

    key: str
    """The model generation it goes to."""
    arrival_s: float
    draw: float = 0.0
    """A uniform number in [0, 1), drawn once per request: seeds every random choice."""
    sequence: int = 0
    """How many requests this gateway placed before it."""
    target_ongoing: int = 3
    ahead: int = 0
    """Requests of the same model that wait in front of it."""
    stalled_s: float = 0.0
    """How long the queue it waits in has not moved; 0 for who does not wait."""
    deadline_s: float | None = None
    lost_s: float = 0.0
    """What earlier requests of its model lost for want of another copy (`ski_rental`)."""
