"""Keeps a `ClusterState` up to date: published changes, checked for gaps, repaired by snapshots.

Published changes carry consecutive versions. A gap, a lost connection or a version that went back
(another Redis) leads to a new snapshot. Once a second the version is asked for, which finds a lost
last message, sweeps expired leases and reservations, and tells how old the copy is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

import orjson

from registry.domain.cluster import ClusterState
from registry.domain.cluster_changes import ChangeApplier, load_snapshot
from registry.errors import RegistryUnavailable
from registry.redis.redis_connection import RedisConnection
from registry.redis.server_address import resolve
from registry.redis.transactions import REPLY_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from registry.domain.model import ModelName, ModelRecord
    from registry.redis.client import Registry
    from registry.redis.transactions import AppliedChanges, ChannelVersions

logger = logging.getLogger(__name__)

SYNC_S: Final = 1.0
_RECONNECT_S: Final = 0.2
_UNDER_WAY_S: Final = 0.05
"""A push that has not come so long after its version was heard of is lost."""


class ClusterWatch:
    """The in-process copy of one pool, and the task that feeds it.

    With `counts=False` the copy leaves out slots and ongoing requests, which change with every
    request: a pod does not need them, and a thousand pods could not follow them.
    """

    def __init__(self, registry: Registry, *, counts: bool = True) -> None:
        self.registry = registry
        self.state = ClusterState()
        self._applier = ChangeApplier(self.state)
        self.repairs_total = 0
        """Snapshots taken because the copy could not be continued."""
        self._channel = "changes" if counts else "news"
        self._pushed_version = 0
        self._is_following = False
        self._needs_snapshot = asyncio.Event()
        self._synced = asyncio.Event()
        self._confirmed_at_s: float | None = None
        self._clock_offset_s = 0.0
        self._callbacks: list[Callable[[], None]] = []
        self._unreadable_total = 0
        self._held_back: list[bytes] | None = None
        """Messages that came while a snapshot was under way: some may be newer than it."""
        self._replies: list[AppliedChanges] = []
        """Our own changes since the last snapshot was asked for, for the same reason."""
        registry.transactions.on_applied = self._on_reply
        registry.transactions.on_lost = self._needs_snapshot.set

    # What readers ask

    def age_s(self) -> float:
        """Seconds since the copy was last known to be complete; infinite before the first."""
        if self._confirmed_at_s is None:
            return float("inf")
        return time.monotonic() - self._confirmed_at_s

    @property
    def is_connected(self) -> bool:
        """Whether changes are being pushed to this copy now."""
        return self._is_following

    def registry_now_s(self) -> float:
        """The registry's clock, as far as this process knows it."""
        return time.time() + self._clock_offset_s

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each change that was applied."""
        self._callbacks.append(callback)

    async def wait_synced(self) -> None:
        """Return once the copy was complete for the first time."""
        await self._synced.wait()

    async def find_model(self, name: ModelName) -> ModelRecord | None:
        """A model's record; the registry is asked where the copy has none.

        A client that has just declared a model may be quicker than the push.
        """
        while (record := self.state.models.get(name)) is None:
            version = self.state.models_version
            try:
                record = await self.registry.get_model(name)
            except RegistryUnavailable:
                return None
            if record is None:
                return None
            if version == self.state.models_version:  # nothing newer was heard meanwhile
                self.state.models[name] = record
        return record

    # The task

    async def run(self) -> None:
        """Follow the registry until cancelled; outages are waited out."""
        while True:
            try:
                await self._follow()
            except RegistryUnavailable as error:
                if self._is_following:
                    logger.warning("the registry is away; serving from the copy", exc_info=error)
            self._is_following = False
            await asyncio.sleep(_RECONNECT_S)

    async def _follow(self) -> None:
        address = await resolve(self.registry.url, self.registry.transactions.prefix)
        connection = await RedisConnection.open(address, on_message=self._on_message)
        try:
            await self._subscribe(connection)
            await self._take_snapshot()
            self._is_following = True
            while connection.is_open:
                if await self._lost_a_push():
                    await self._take_snapshot()
                    self.repairs_total += 1
        finally:
            connection.close()

    async def _subscribe(self, connection: RedisConnection) -> None:
        channel = self.registry.transactions.prefix + self._channel
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                await connection.call("SUBSCRIBE", channel)
        except TimeoutError as error:
            raise RegistryUnavailable("Redis did not answer to a subscription") from error

    async def _lost_a_push(self) -> bool:
        """Wait for a reason to look, at most `SYNC_S`; say whether the copy has a hole."""
        try:
            async with asyncio.timeout(SYNC_S):
                await self._needs_snapshot.wait()
            return True
        except TimeoutError:
            before = self._pushed_version
            versions, now_ms = await self.registry.transactions.sync()
            version = self._version(versions)
            self._set_clock(now_ms)
            if version < before:
                return True
            is_quiet = before == self._pushed_version
            if is_quiet and version > self._pushed_version:
                await asyncio.sleep(_UNDER_WAY_S)
                return version > self._pushed_version
            self._confirmed_at_s = time.monotonic()
            return False

    async def _take_snapshot(self) -> None:
        self._needs_snapshot.clear()
        held_back: list[bytes] = []
        self._held_back = held_back
        self._replies.clear()
        try:
            versions, now_ms, snapshot = await self.registry.transactions.snapshot()
        finally:
            self._held_back = None
        self._pushed_version = self._version(versions)
        self._applier = load_snapshot(self.state, self._pushed_version, snapshot)
        self._set_clock(now_ms)
        self._confirmed_at_s = time.monotonic()
        self._synced.set()
        for applied in self._replies:
            self._apply_reply(applied)
        for payload in held_back:
            self._on_message(payload)
        self._notify()

    # Incoming changes

    def _on_message(self, payload: bytes) -> None:
        if self._held_back is not None:
            self._held_back.append(payload)
            return
        try:
            version_text, now_text, origin, text = payload.split(b" ", 3)
            version, now_ms = int(version_text), int(now_text)
            is_own = origin.decode() == self.registry.transactions.origin
            changes = () if is_own else orjson.loads(text)  # ours came with the reply
        except ValueError:
            logger.warning("a published change cannot be read")
            self._needs_snapshot.set()
            return
        if version <= self._pushed_version:
            return  # already in the snapshot
        if version != self._pushed_version + 1:
            self._needs_snapshot.set()
        self._pushed_version = version
        self._confirmed_at_s = time.monotonic()
        if not is_own:
            self._set_clock(now_ms)
            self._applier.apply(version, changes)
            self._notify()

    def _on_reply(self, applied: AppliedChanges) -> None:
        if self._held_back is not None:
            self._replies.append(applied)
        if self._synced.is_set():
            self._apply_reply(applied)
            self._notify()

    def _apply_reply(self, applied: AppliedChanges) -> None:
        self._applier.apply(self._version(applied.versions), orjson.loads(applied.changes))

    def _version(self, versions: ChannelVersions) -> int:
        return versions.changes if self._channel == "changes" else versions.news

    def _set_clock(self, now_ms: int) -> None:
        self._clock_offset_s = now_ms / 1000 - time.time()

    def _notify(self) -> None:
        applier = self._applier
        if applier.unreadable_total > self._unreadable_total:
            logger.warning("a change could not be read", extra={"cause": applier.unreadable_cause})
        self._unreadable_total = applier.unreadable_total
        for callback in self._callbacks:
            callback()
