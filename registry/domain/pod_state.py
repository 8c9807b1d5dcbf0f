"""One pod in the in-process copy of a pool: what routing policies and planners read about it.

Mutable for speed. What policies ask about many pods per decision is computed when a count changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from registry.domain.model import Tier
from registry.domain.pod import PodInfo, PodPhase

if TYPE_CHECKING:
    from collections.abc import Mapping


class ChangeCounter:
    """How often something has changed; results computed at another count are out of date."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class PodState:
    """One pod. One task writes it; decisions, which never await, read it."""

    __slots__ = (
        "_is_suspect", "_ongoing", "_ongoing_pending", "_phase", "_slots_pending", "_slots_used",
        "_used_bytes", "accepting_changes", "changed", "counts_version", "epoch", "free_bytes",
        "has_free_slot", "inferring", "info", "is_accepting", "loads_total", "name", "slots",
        "slots_busy", "version",
    )  # fmt: skip

    def __init__(self, info: PodInfo) -> None:
        self.info = info
        self.name = info.name
        self.slots = info.slots
        self.epoch = 0
        self.loads_total = 0
        self.changed: set[PodState] = set()
        """The pod adds itself here when its rank may have changed: the `PodIndex`'s own set."""
        self.accepting_changes = ChangeCounter()
        """Counts changes of `is_accepting`; shared by all pods of a `PodIndex`."""
        self.version = 0
        """Registry version of the last change of the pod's record."""
        self.counts_version = 0
        """Registry version of the last change of its slots and ongoing requests."""
        self.slots_busy = 0
        """`slots_used` + `slots_pending`."""
        self.inferring = 0
        """Requests in their inference stage: `ongoing` + `ongoing_pending`, at least 0."""
        self.is_accepting = True
        """Whether requests may be sent to the pod: it is ready and not suspect."""
        self.has_free_slot = info.slots > 0
        """Whether the pod can be a request's entry pod now."""
        self.free_bytes = info.memory_bytes
        """Device memory a load can use without an eviction."""
        self._phase = PodPhase.READY
        self._is_suspect = False
        self._slots_used = self._slots_pending = 0
        self._ongoing = self._ongoing_pending = 0
        self._used_bytes: Mapping[str, int] = {}

    @property
    def address(self) -> str:
        return self.info.address

    @property
    def node(self) -> str:
        return self.info.node

    @property
    def memory_bytes(self) -> int:
        return self.info.memory_bytes

    @property
    def slots_used(self) -> int:
        """Slots taken, by the last published count."""
        return self._slots_used

    @slots_used.setter
    def slots_used(self, count: int) -> None:
        self._slots_used = count
        self.changed.add(self)
        self.slots_busy = busy = count + self._slots_pending
        self.has_free_slot = busy < self.slots and self.is_accepting

    @property
    def slots_pending(self) -> int:
        """Slots this process has requested less those it has released, not yet in `slots_used`."""
        return self._slots_pending

    @slots_pending.setter
    def slots_pending(self, count: int) -> None:
        self._slots_pending = count
        self.changed.add(self)
        self.slots_busy = busy = count + self._slots_used
        self.has_free_slot = busy < self.slots and self.is_accepting

    @property
    def ongoing(self) -> int:
        """Requests in their inference stage, by the last published count."""
        return self._ongoing

    @ongoing.setter
    def ongoing(self, count: int) -> None:
        self._ongoing = count
        self.changed.add(self)
        count += self._ongoing_pending
        self.inferring = count if count > 0 else 0

    @property
    def ongoing_pending(self) -> int:
        """As `slots_pending`, for requests in their inference stage."""
        return self._ongoing_pending

    @ongoing_pending.setter
    def ongoing_pending(self, count: int) -> None:
        self._ongoing_pending = count
        self.changed.add(self)
        count += self._ongoing
        self.inferring = count if count > 0 else 0

    @property
    def phase(self) -> PodPhase:
        """The phase that the pod has reported."""
        return self._phase

    @phase.setter
    def phase(self, phase: PodPhase) -> None:
        self._phase = phase
        self._update_accepting()

    @property
    def is_suspect(self) -> bool:
        """A gateway could not reach the pod; any published change of its record clears this."""
        return self._is_suspect

    @is_suspect.setter
    def is_suspect(self, is_suspect: bool) -> None:
        self._is_suspect = is_suspect
        self._update_accepting()

    def _update_accepting(self) -> None:
        is_accepting = self._phase is PodPhase.READY and not self._is_suspect
        if is_accepting is self.is_accepting:
            return
        self.changed.add(self)
        self.is_accepting = is_accepting
        self.accepting_changes.count += 1
        self.has_free_slot = self.slots_busy < self.slots and self.is_accepting

    @property
    def used_bytes(self) -> Mapping[str, int]:
        """Bytes in use per tier."""
        return self._used_bytes

    @used_bytes.setter
    def used_bytes(self, used_bytes: Mapping[str, int]) -> None:
        self._used_bytes = used_bytes
        self.changed.add(self)
        self.free_bytes = self.info.memory_bytes - used_bytes.get(Tier.DEVICE, 0)
