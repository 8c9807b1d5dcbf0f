"""The controller: a queue of changed objects, and workers that reconcile them while it leads.

Level-triggered: a worker acts on what is, not on what happened, so a key may be queued at any time.
Every replica follows the cluster and the registries; only the leader acts. A new leader reconciles
everything first; one that loses the lead stops its workers, in the middle of a call if need be.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from controller.api import (
    FAILURES,
    IS_LEADING,
    MODELS,
    Changed,
    ClusterUnreachable,
    Denied,
    KubernetesError,
)
from controller.objects import ClusterObjects, Key
from controller.resources import Kind, Role
from registry.errors import RegistryError, RegistryUnavailable

logger = logging.getLogger(__name__)

CHANGES_INTERVAL_S = 1.0
"""Registries change with every load; what they changed is queued this often at most."""
WORKERS = 16
RETRY_DELAYS_S = {Changed: 0.2, ClusterUnreachable: 2.0, RegistryUnavailable: 1.0, Denied: 30.0}
DEFAULT_RETRY_S = 5.0
FEW_CONFLICTS = 5
"""Of one key in a row, while the watch is behind. More are of writes that the API server finds
invalid: they are logged, and their pauses grow."""
MAX_CONFLICT_PAUSE_S = 30.0

Reconcile = Callable[[Key], Awaitable[float | None]]
"""Of one object, or of all of a kind. Returns the seconds until the next call is due, or
None if only a change makes it due. Raises KubernetesError, RegistryError."""


class WorkQueue:
    """Keys to process: each once, and by one worker at a time; as client-go's `workqueue`."""

    def __init__(self) -> None:
        self._waiting: dict[Key, None] = {}
        self._active: set[Key] = set()
        self._repeated: set[Key] = set()
        """Active keys that were added again."""
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._has_work = asyncio.Event()

    def add(self, key: Key) -> None:
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()
        if key in self._active:
            self._repeated.add(key)
        else:
            self._waiting[key] = None
            self._has_work.set()

    def add_after(self, key: Key, delay_s: float) -> None:
        """Unless it is added before."""
        if key not in self._waiting and key not in self._repeated:
            if (timer := self._timers.pop(key, None)) is not None:
                timer.cancel()
            self._timers[key] = asyncio.get_running_loop().call_later(delay_s, self.add, key)

    async def get(self) -> Key:
        """The key that waits longest; `done` must follow."""
        while not self._waiting:
            self._has_work.clear()
            await self._has_work.wait()
        key = next(iter(self._waiting))
        del self._waiting[key]
        self._active.add(key)
        return key

    def done(self, key: Key) -> None:
        self._active.discard(key)
        if key in self._repeated:
            self._repeated.discard(key)
            self.add(key)


class Controller:
    def __init__(
        self,
        objects: ClusterObjects,
        reconcilers: Mapping[Kind, Reconcile],
        changed_in_registries: Callable[[], list[Key]],
    ) -> None:
        """`changed_in_registries`: what to reconcile since a registry has changed."""
        self._objects = objects
        self._reconcilers = reconcilers
        self._changed_in_registries = changed_in_registries
        self._queue = WorkQueue()
        objects.on_change = self._on_object_change
        self._changed = asyncio.Event()
        self._leading = asyncio.Event()
        self._following = asyncio.Event()
        self._following.set()
        self._failing: set[Key] = set()
        self._conflicts: Counter[Key] = Counter()
        """In a row."""

    def _on_object_change(self, key: Key) -> None:
        self._queue.add(key)
        self._changed.set()

    def on_registry_change(self) -> None:
        self._changed.set()

    def set_leading(self, is_leading: bool) -> None:
        IS_LEADING.set(is_leading)
        if is_leading:
            for key in self._objects.all_keys():
                self._on_object_change(key)
            self._following.clear()
            self._leading.set()
        else:
            self._leading.clear()
            self._following.set()

    async def run(self) -> None:
        """Until cancelled. Call it once all objects are listed: what is missing gets deleted."""
        while True:
            await self._leading.wait()
            async with asyncio.TaskGroup() as tasks:
                working = [tasks.create_task(self._work()) for _ in range(WORKERS)]
                working.append(tasks.create_task(self._follow_changes()))
                await self._following.wait()
                for each in working:
                    each.cancel()

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            try:
                wait_s = await self._reconcile(key)
            finally:
                self._queue.done(key)
            if wait_s is not None:
                self._queue.add_after(key, wait_s)

    async def _reconcile(self, key: Key) -> float | None:
        try:
            wait_s = await self._reconcilers[key.kind](key)
        except (KubernetesError, RegistryError) as error:
            return self._record_failure(key, error)
        self._failing.discard(key)
        self._conflicts.pop(key, None)
        return wait_s

    def _record_failure(self, key: Key, error: Exception) -> float:
        """Count a failure, log the first one of a key; returns the delay of the retry, s."""
        FAILURES.labels(cause=type(error).__name__).inc()
        is_conflict = isinstance(error, Changed)
        self._conflicts[key] += is_conflict
        more = self._conflicts[key] - FEW_CONFLICTS
        if key not in self._failing and (more >= 0 or not is_conflict):
            self._failing.add(key)
            subject = key.kind.value if key.name is None else f"model {key.name}"
            logger.warning("failed; retrying", extra={"what": subject}, exc_info=error)
        delays = (delay for kind, delay in RETRY_DELAYS_S.items() if isinstance(error, kind))
        delay_s = next(delays, DEFAULT_RETRY_S)
        if is_conflict and more > 0:
            return min(delay_s * 2.0 ** min(more, 10), MAX_CONFLICT_PAUSE_S)
        return delay_s

    async def _follow_changes(self) -> None:
        """Queue what changes of registries, or of other objects, make due."""
        while True:
            MODELS.set(sum(each.role is Role.MODEL for each in self._objects.declared()))
            began_s = time.monotonic()
            for key in self._changed_in_registries():
                self._queue.add(key)
            for kind in (Kind.SERVICE, Kind.POD, Kind.APPLICATION, Kind.TENANT, Kind.ROUTE):
                self._queue.add(Key(kind))
            took_s = time.monotonic() - began_s
            await asyncio.sleep(max(CHANGES_INTERVAL_S, 10 * took_s))
            await self._changed.wait()
            self._changed.clear()
