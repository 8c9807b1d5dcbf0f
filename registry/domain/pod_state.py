"""One pod in the in-process copy of a pool: what routing policies and planners read about it.

Mutable for speed. What policies ask about many pods per decision is computed when a count changes.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from registry.domain.estimates import Measurements
from registry.domain.model import Tier
from registry.domain.pod import PodInfo, PodPhase
from registry.domain.pod_work import PodWork

_KEPT: Final = 1024


class ChangeLog:
    """The pods of the latest changes of counts, memory and membership: rankings update by it."""

    __slots__ = ("count", "pods")

    def __init__(self) -> None:
        self.count = 0
        self.pods: deque[PodState] = deque(maxlen=_KEPT)

    def add(self, pod: "PodState") -> None:
        self.count += 1
        self.pods.append(pod)

    def since(self, count: int, most: int) -> "set[PodState] | None":
        """Those of the changes after the first `count`; None: of more than `most`, or forgotten."""
        new = self.count - count
        if new > most or new > len(self.pods):
            return None
        return set(islice(reversed(self.pods), new))


class ChangeCounter:
    """How often something has changed; results computed at another count are out of date."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class PodState:
    """One pod. One task writes it, through the methods; decisions read it without an await."""

    __slots__ = (
        "_ongoing_total", "accepting_changes", "address", "changes", "counts_version", "epoch",
        "estimates", "free_bytes", "has_free_slot", "inferring", "info", "is_accepting",
        "is_suspect", "kind", "loads_total", "memory_bytes", "name", "node", "ongoing", "phase",
        "placed_model", "sharing", "slots", "slots_busy", "slots_used", "used_bytes", "version",
        "work",
    )  # fmt: skip

    def __init__(self, info: PodInfo) -> None:
        self.info = info
        self.name = info.name
        self.address = info.address
        self.node = info.node
        self.slots = info.slots
        self.memory_bytes = info.memory_bytes
        self.kind = info.kind
        self.placed_model = info.placed_model
        self.estimates = Measurements().at(self.kind)
        """By model key; in a `PodIndex` those of all pods of its kind."""
        self.epoch = 0
        self.loads_total = 0
        self.changes = ChangeLog()
        """The pod adds itself here when its rank may have changed: the `PodIndex`'s own log."""
        self.accepting_changes = ChangeCounter()
        """Counts changes of `is_accepting`; shared by all pods of a `PodIndex`."""
        self.version = 0
        """Registry version of the last change of the pod's record."""
        self.counts_version = 0
        """Registry version of the last change of its slots and ongoing requests."""
        self.phase = PodPhase.READY
        """As the pod has reported it."""
        self.is_suspect = False
        """A gateway could not reach the pod; any published change of its record clears this."""
        self.is_accepting = True
        """Whether requests may be sent to the pod: it is ready and not suspect."""
        self.slots_used = 0
        """Slots taken, by the last published count."""
        self.slots_busy = 0
        """With those that this process has requested, less those it has released, since then."""
        self.has_free_slot = info.slots > 0
        """Whether the pod can be a request's entry pod now."""
        self.ongoing = 0
        """Requests in their inference stage, by the last published count."""
        self._ongoing_total = 0
        """As `slots_busy`; below 0 where a release came before the count that has the request."""
        self.inferring = 0
        """The same, at least 0."""
        self.work = PodWork()
        """Requests that this process has placed at the pod."""
        self.used_bytes: Mapping[str, int] = {}
        """By tier."""
        self.free_bytes = info.memory_bytes
        """Device memory a load can use without an eviction."""
        self.sharing: list[PodState] = []
        """In a `PodIndex`: all pods of its accelerator, itself included; empty without a UUID."""

    def set_counts(self, slots_used: int, ongoing: int) -> None:
        slots, inferring = slots_used - self.slots_used, ongoing - self.ongoing
        self.slots_used, self.ongoing = slots_used, ongoing
        self.add_pending(slots, inferring)

    def add_pending(self, slots: int = 0, ongoing: int = 0) -> None:
        """Count what this process has requested, or, below 0, released."""
        changes = self.changes  # as `ChangeLog.add`, without a call per request
        changes.count += 1
        changes.pods.append(self)
        self.slots_busy = busy = self.slots_busy + slots
        self.has_free_slot = busy < self.slots and self.is_accepting
        self._ongoing_total = total = self._ongoing_total + ongoing
        self.inferring = total if total > 0 else 0

    def set_phase(self, phase: PodPhase) -> None:
        self.phase = phase
        self._update_accepting()

    def set_suspect(self, *, is_suspect: bool) -> None:
        self.is_suspect = is_suspect
        self._update_accepting()

    def _update_accepting(self) -> None:
        is_accepting = self.phase is PodPhase.READY and not self.is_suspect
        if is_accepting is not self.is_accepting:
            self.is_accepting = is_accepting
            self.accepting_changes.count += 1
            self.add_pending()

    def set_used_bytes(self, used_bytes: Mapping[str, int]) -> None:
        self.used_bytes = used_bytes
        if self.sharing:
            divide_free_bytes(self.sharing)
            return
        self.free_bytes = self.memory_bytes - used_bytes.get(Tier.DEVICE, 0)
        self.changes.add(self)


def divide_free_bytes(pods: Sequence[PodState]) -> None:
    """Set `free_bytes` of all pods of one accelerator, so that its memory counts once.

    Where the free parts of their budgets exceed what is left of the accelerator's memory, each pod
    gets its proportion of that.
    """
    used_bytes = [pod.used_bytes.get(Tier.DEVICE, 0) for pod in pods]
    free_bytes = [
        max(0, pod.memory_bytes - used) for pod, used in zip(pods, used_bytes, strict=True)
    ]
    memory_bytes = max(pod.info.accelerator.memory_bytes for pod in pods)
    left, wanted = max(0, memory_bytes - sum(used_bytes)), sum(free_bytes)
    for pod, free in zip(pods, free_bytes, strict=True):
        pod.free_bytes = free if wanted <= left else free * left // wanted
        pod.changes.add(pod)
