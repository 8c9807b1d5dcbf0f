"""Keeps a `ClusterState` up to date: published changes, checked for gaps, repaired by snapshots.

Published changes carry consecutive versions. A gap, a lost connection or a version that went back
(another Redis) leads to a new snapshot. A sync once a second detects a lost last message, removes
expired leases and reservations, and confirms that the copy is complete.
"""

import asyncio
import logging
import random
import time
import zlib
from collections.abc import Callable
from itertools import count
from typing import Final

import orjson

from common.backoff import Backoff
from registry.domain.cluster import ChangeApplier, ClusterState, Snapshot, load_snapshot
from registry.domain.model import ModelName, ModelRecord
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry
from registry.redis.redis_connection import RedisConnection
from registry.redis.script import ChannelVersions
from registry.redis.server_address import find_server
from registry.redis.transactions import REPLY_TIMEOUT_S, AppliedChanges, Transactions

logger = logging.getLogger(__name__)

SNAPSHOT_TTL_MS: Final = 10_000
"""Life of the stored snapshot."""
_RETRY: Final = Backoff(initial_s=0.2, max_s=1.6)
"""Between two requests for the stored snapshot; times a random factor, to spread clients."""
_MIN_INTERVAL_MS: Final = 500
"""Time after a stored snapshot until another client may store a newer one."""
_COMPRESSION_LEVEL: Final = 1
_VERSION_DIGITS: Final = 20
_KEY: Final = "snapshot"


async def take_shared_snapshot(transactions: Transactions) -> tuple[ChannelVersions, int, Snapshot]:
    """A snapshot for a client that is subscribed to `news`, taken once for many and kept in Redis.

    A thousand pods that reconnect at once would each have Redis assemble the whole state. Instead
    one stores a compressed snapshot for a few seconds. The client needs at least the version that
    was current when it first asked, since it receives every later change. Counts are left out. The
    version of `changes` is 0 if the snapshot is another client's. Raises RegistryUnavailable.
    """
    at_least = 0
    for attempt in count(1):
        versions, now_ms, answer = await transactions.share_snapshot(at_least)
        at_least = at_least or versions.news
        if answer == "stored":
            found = await _read(transactions, at_least)
            if found is not None:
                return found[0], now_ms, found[1]
        elif answer == "take":
            return await _take_and_store(transactions)
        elif answer == "alone":
            return await transactions.snapshot()
        await asyncio.sleep(_RETRY.pause_s(attempt) * random.uniform(0.5, 1.5))
    raise AssertionError("unreachable: the count does not end")


async def _take_and_store(transactions: Transactions) -> tuple[ChannelVersions, int, Snapshot]:
    taken = versions, _, snapshot = await transactions.snapshot()
    packed = await asyncio.to_thread(_pack, versions.news, snapshot)
    try:
        await transactions.command(
            "SET", transactions.prefix + _KEY, packed, "PX", str(SNAPSHOT_TTL_MS)
        )
        await transactions.command(
            "PEXPIRE", transactions.prefix + "sharing", str(_MIN_INTERVAL_MS)
        )
    except RegistryUnavailable as error:
        logger.info("snapshot not stored for other pods", extra={"cause": error})
    return taken


async def _read(
    transactions: Transactions, at_least: int
) -> tuple[ChannelVersions, Snapshot] | None:
    """The stored snapshot; None if it expired meanwhile, or was replaced by an older one."""
    packed = await transactions.command("GET", transactions.prefix + _KEY)
    if packed is None or int(packed[:_VERSION_DIGITS]) < at_least:
        return None
    return ChannelVersions(0, int(packed[:_VERSION_DIGITS])), await asyncio.to_thread(
        _unpack, packed
    )


def _pack(version: int, snapshot: Snapshot) -> bytes:
    """The version in digits, which the script reads, and the snapshot as compressed JSON."""
    return b"%0*d" % (_VERSION_DIGITS, version) + zlib.compress(
        orjson.dumps(list(snapshot)), _COMPRESSION_LEVEL
    )


def _unpack(packed: bytes) -> Snapshot:
    parts = orjson.loads(zlib.decompress(packed[_VERSION_DIGITS:]))
    return Snapshot(*parts[: len(Snapshot._fields)])


SYNC_INTERVAL_S: Final = 1.0
RECONNECT: Final = Backoff(initial_s=0.2, max_s=2.0)
"""Between two attempts to connect; times a random factor, to spread pods."""


class ClusterWatch:
    """The in-process copy of one pool, and the task that keeps it up to date.

    With `counts=False` the copy leaves out slots and ongoing requests, which change with every
    request: a pod does not need them, and Redis could not push them to a thousand pods.
    """

    def __init__(self, registry: Registry, *, counts: bool = True) -> None:
        self.registry = registry
        self.state = ClusterState()
        self.repairs_total = 0
        """Snapshots taken because messages were missing or unreadable."""
        self._applier = ChangeApplier(self.state)
        self._channel = "changes" if counts else "news"
        self._pushed_version = 0
        self.is_connected = False
        """Whether changes are being pushed to this copy now."""
        self._needs_snapshot = asyncio.Event()
        self._synced = asyncio.Event()
        self._confirmed_at_s: float | None = None
        self._clock_offset_s = time.time() - time.monotonic()
        self._callbacks: list[Callable[[], None]] = []
        self._unreadable_total = 0
        self._buffered_messages: list[bytes] | None = None
        """Messages that arrive while a snapshot is read: some may be newer than the snapshot."""
        self._buffered_replies: list[AppliedChanges] = []
        """Our own changes since the last snapshot was requested, for the same reason."""
        registry.transactions.on_applied = self._on_reply
        registry.transactions.on_lost = self._needs_snapshot.set

    def age_s(self) -> float:
        """Seconds since the copy was last known to be complete; infinite before the first time."""
        if self._confirmed_at_s is None:
            return float("inf")
        return time.monotonic() - self._confirmed_at_s

    def registry_now_s(self) -> float:
        """The registry's clock, by its latest message and the monotonic time since then."""
        return time.monotonic() + self._clock_offset_s

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each batch of changes is applied."""
        self._callbacks.append(callback)

    async def wait_synced(self) -> None:
        """Return once the copy has been complete for the first time."""
        await self._synced.wait()

    async def find_model(self, name: ModelName) -> ModelRecord | None:
        """A model's record, read from Redis where the copy has none.

        The first request to a new model may arrive before the push of its declaration.
        """
        while (record := self.state.models.get(name)) is None:
            version = self.state.models_version
            try:
                record = await self.registry.get_model(name)
            except RegistryUnavailable:
                return None
            if record is None:
                return None
            if version == self.state.models_version:  # no newer change was applied meanwhile
                self.state.models[name] = record
        return record

    async def run(self) -> None:
        """Keep the copy up to date until cancelled; reconnects after outages."""
        failures = 0
        while True:
            failures += 1
            try:
                await self._follow()
            except RegistryUnavailable as error:
                if self.is_connected:
                    logger.warning(
                        "registry unavailable; serving from the copy", extra={"error": error}
                    )
            if self.is_connected:
                failures = 1
            self.is_connected = False
            await asyncio.sleep(RECONNECT.pause_s(failures) * random.uniform(0.5, 1.5))

    async def _follow(self) -> None:
        address = await find_server(self.registry.url, self.registry.transactions.prefix)
        connection = await RedisConnection.open(address, on_message=self._on_message)
        try:
            channel = self.registry.transactions.prefix + self._channel
            await _call(connection, "SUBSCRIBE", channel)
            await self._take_snapshot()
            self.is_connected = True
            while connection.is_open:
                if await self._is_snapshot_needed(connection):
                    await self._take_snapshot()
                    self.repairs_total += 1
        finally:
            connection.close()

    async def _is_snapshot_needed(self, connection: RedisConnection) -> bool:
        """Wait until a gap is noticed, at most `SYNC_INTERVAL_S`, then check for one by a sync."""
        try:
            async with asyncio.timeout(SYNC_INTERVAL_S):
                await self._needs_snapshot.wait()
            return True
        except TimeoutError:
            before = self._pushed_version
            versions, now_ms = await self.registry.transactions.sync()
            version = self._version_of(versions)
            self._set_clock(now_ms)
            if version < before:
                return True
            if before == self._pushed_version < version:
                await _call(connection, "PING")  # its reply comes after what was pushed
                return version > self._pushed_version
            self._confirmed_at_s = time.monotonic()
            return False

    async def _take_snapshot(self) -> None:
        self._needs_snapshot.clear()
        messages: list[bytes] = []
        self._buffered_messages = messages
        self._buffered_replies.clear()
        try:
            transactions = self.registry.transactions
            versions, now_ms, snapshot = await (
                transactions.snapshot()
                if self._channel == "changes"
                else take_shared_snapshot(transactions)
            )
        finally:
            self._buffered_messages = None
        self._pushed_version = self._version_of(versions)
        self._applier = load_snapshot(self.state, self._pushed_version, snapshot, now_ms / 1000)
        self._set_clock(now_ms)
        self._confirmed_at_s = time.monotonic()
        self._synced.set()
        for applied in self._buffered_replies:
            self._apply_reply(applied)
        for payload in messages:
            self._on_message(payload)
        self._notify()

    def _on_message(self, payload: bytes) -> None:
        if self._buffered_messages is not None:
            self._buffered_messages.append(payload)
            return
        try:
            version_text, now_text, origin, text = payload.split(b" ", 3)
            version, now_ms = int(version_text), int(now_text)
            is_own = origin.decode() == self.registry.transactions.origin
            changes = () if is_own else orjson.loads(text)  # our own arrive with the reply
        except ValueError:
            logger.warning("unreadable published change")
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
            self._applier.apply(version, changes, now_ms / 1000)
            self._notify()

    def _on_reply(self, applied: AppliedChanges) -> None:
        if self._buffered_messages is not None:
            self._buffered_replies.append(applied)
        if self._synced.is_set():
            self._apply_reply(applied)
            self._notify()

    def _apply_reply(self, applied: AppliedChanges) -> None:
        changes = orjson.loads(applied.changes)
        self._applier.apply(self._version_of(applied.versions), changes, self.registry_now_s())

    def _version_of(self, versions: ChannelVersions) -> int:
        return versions.changes if self._channel == "changes" else versions.news

    def _set_clock(self, now_ms: int) -> None:
        self._clock_offset_s = now_ms / 1000 - time.monotonic()

    def _notify(self) -> None:
        applier = self._applier
        if applier.unreadable_total > self._unreadable_total:
            logger.warning("unreadable change", extra={"cause": applier.unreadable_cause})
        self._unreadable_total = applier.unreadable_total
        for callback in self._callbacks:
            try:
                callback()
            except Exception:  # an error here would leave callers of the batch waiting forever
                logger.exception("a reader of the copy failed")


async def _call(connection: RedisConnection, *command: str) -> None:
    """Send a command on the subscribed connection. Raises RegistryUnavailable."""
    try:
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            await connection.call(*command)
    except TimeoutError as error:
        raise RegistryUnavailable(f"Redis did not reply to {command[0]}") from error
