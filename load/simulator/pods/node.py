"""A simulated node, shared by pods: its link to object storage, its disk and its host memory.

Transfers share a link equally (processor sharing): each of n gets 1/n of the link's rate, so the
bytes per transfer (the attained service) grow equally for all. One counter holds them; a transfer
ends when the counter has grown by the transfer's size; a heap holds the values of the counter
at which transfers end.
"""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any

from load.simulator.cluster.plan import ModelPlan, NodePlan
from load.simulator.event_queue import EventQueue
from load.simulator.pods.shared_processors import SharedCores
from registry.domain.model import Tier


class SharedLink:
    """A link of `bytes_per_s`; transfers take no time if that is infinite."""

    def __init__(self, events: EventQueue, bytes_per_s: float) -> None:
        self._events = events
        self._rate = bytes_per_s
        self._attained = 0.0
        """Attained service: bytes per transfer since the link was last idle."""
        self._since_s = 0.0
        self._transfers: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._number = 0
        self._plan = 0

    def send(self, size_bytes: float, done: Callable[[Any], None], argument: Any) -> None:
        """Transfer `size_bytes`, then call `done(argument)`."""
        if self._rate == inf or size_bytes <= 0:
            self._events.after(0.0, done, argument)
            return
        self._settle()
        self._number += 1
        heappush(self._transfers, (self._attained + size_bytes, self._number, done, argument))
        self._plan_next()

    def _settle(self) -> None:
        now_s = self._events.now_s
        if self._transfers:
            self._attained += (now_s - self._since_s) * self._rate / len(self._transfers)
        self._since_s = now_s

    def _plan_next(self) -> None:
        self._plan += 1
        left = max(0.0, self._transfers[0][0] - self._attained)
        self._events.after(left * len(self._transfers) / self._rate, self._first_ended, self._plan)

    def _first_ended(self, plan: int) -> None:
        if plan != self._plan:  # another transfer started or ended since
            return
        self._settle()
        end, _, done, argument = heappop(self._transfers)
        self._attained = end
        if self._transfers:
            self._plan_next()
        else:
            self._attained = 0.0
        done(argument)


class SimulatedMachine:
    """What all nodes of one machine share."""

    def __init__(self, events: EventQueue, plan: NodePlan) -> None:
        self.disk_link = SharedLink(events, plan.disk_bytes_per_s)
        self.cores = (
            None if plan.cores == inf else SharedCores(events, plan.cores, plan.all_cores_speed)
        )
        """None: work never slows down."""


class SimulatedNode:
    """Resources that the pods of one node share.

    `on_change(node, key)` is called when the node's copy of a model changes.
    """

    def __init__(
        self,
        events: EventQueue,
        plan: NodePlan,
        machine: SimulatedMachine,
        on_change: "Callable[[SimulatedNode, str], None]",
    ) -> None:
        self.plan = plan
        self.name = plan.name
        self._on_change = on_change
        self._storage_link = SharedLink(events, plan.object_storage_bytes_per_s)
        self.disk_link = machine.disk_link
        self.cores = machine.cores
        self._disk: dict[str, int] = {}
        """Bytes by model, least recently used first; the same for `_host`."""
        self._host: dict[str, int] = {}
        self._fetching: dict[str, list[tuple[Callable[[Any], None], Any]]] = {}
        self._demoting: deque[ModelPlan] = deque()
        self.disk_bytes = 0
        self.host_bytes = 0

    def nearest(self, key: str) -> Tier:
        """The fastest tier of this machine that holds the model; REMOTE if none does."""
        if key in self._host:
            return Tier.HOST
        return Tier.DISK if key in self._disk else Tier.REMOTE

    def bytes_in(self, tier: Tier, key: str) -> int:
        """Bytes of a model in host memory or on disk; 0 if it is not there."""
        return (self._host if tier is Tier.HOST else self._disk).get(key, 0)

    def mark_used(self, key: str) -> None:
        """Make the model the last to be evicted from disk and host memory."""
        for tier in (self._disk, self._host):
            if key in tier:
                tier[key] = tier.pop(key)

    def fetch(self, plan: ModelPlan, done: Callable[[Any], None], argument: Any) -> bool:
        """Download the model to the disk, once for all pods that need it at the same time.

        Returns False if a download of the model was already in progress; `done` is called anyway.
        """
        key = plan.spec.key
        waiting = self._fetching.get(key)
        if waiting is not None:
            waiting.append((done, argument))
            return False
        self._fetching[key] = [(done, argument)]
        self._storage_link.send(plan.size_bytes, self._fetched, plan)
        return True

    def _fetched(self, plan: ModelPlan) -> None:
        self.put(plan, Tier.DISK)
        for done, argument in self._fetching.pop(plan.spec.key):
            done(argument)

    def put(self, plan: ModelPlan, tier: Tier) -> None:
        """Put the model on a tier; evicts the least recently used models if there is no room."""
        key, size_bytes = plan.spec.key, plan.size_bytes
        held = self._host if tier is Tier.HOST else self._disk
        budget = self.plan.host_memory_bytes if tier is Tier.HOST else self.plan.disk_bytes
        if key in held:
            return
        used = self.host_bytes if tier is Tier.HOST else self.disk_bytes
        evicted = []
        while held and used + size_bytes > budget:
            oldest = next(iter(held))
            used -= held.pop(oldest)
            evicted.append(oldest)
        held[key] = size_bytes
        if tier is Tier.HOST:
            self.host_bytes = used + size_bytes
        else:
            self.disk_bytes = used + size_bytes
        for each in (*evicted, key):
            self._on_change(self, each)

    def preload(self, plan: ModelPlan, tier: Tier) -> bool:
        """Load the model to disk, and from there to host memory if that is the tier.

        Returns False if the model is already there or being downloaded, or exceeds host memory.
        """
        key = plan.spec.key
        if key in self._host or key in self._fetching:
            return False
        if tier is Tier.HOST and plan.size_bytes > self.plan.host_memory_bytes:
            return False
        if key not in self._disk:
            self.fetch(plan, self.demote if tier is Tier.HOST else lambda _: None, plan)
        elif tier is Tier.HOST:
            self.demote(plan)
        else:
            return False
        return True

    def drop(self, key: str, tier: Tier) -> bool:
        """Remove the copies above a tier; returns False if there were none."""
        had = key in self._host or (tier is Tier.REMOTE and key in self._disk)
        if tier in (Tier.DISK, Tier.REMOTE):
            self.host_bytes -= self._host.pop(key, 0)
        if tier is Tier.REMOTE:
            self.disk_bytes -= self._disk.pop(key, 0)
        if had:
            self._on_change(self, key)
        return had

    def demote(self, plan: ModelPlan) -> None:
        """Copy a model into host memory, one model at a time."""
        if plan.size_bytes > self.plan.host_memory_bytes or plan.spec.key in self._host:
            return
        self._demoting.append(plan)
        if len(self._demoting) == 1:
            self._copy(plan)

    def _copy(self, plan: ModelPlan) -> None:
        if self.cores is None:
            self.disk_link.send(plan.size_bytes, self._copied, plan)
        else:  # the files are in the page cache: copying takes a core
            seconds = plan.size_bytes / self.plan.disk_bytes_per_s
            self.cores.run(seconds, self._copied, plan)

    def _copied(self, plan: ModelPlan) -> None:
        self._demoting.popleft()
        self.put(plan, Tier.HOST)
        if self._demoting:
            self._copy(self._demoting[0])
