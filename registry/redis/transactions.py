"""Registry operations as atomic server-side scripts, batched.

While one batch is on its way, further operations gather for the next: at low load an operation
costs one round trip, at high load many share one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

import orjson

from registry.errors import RegistryRefused, RegistryUnavailable
from registry.redis.reconnecting import ReconnectingConnection, too_late
from registry.redis.snapshot import hash_reads, read_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from registry.redis.redis_connection import RedisConnection

logger = logging.getLogger(__name__)

REPLY_TIMEOUT_S = 0.8
"""Callers shall hear within a second that Redis is away, hung or cut off."""
SNAPSHOT_TIMEOUT_S = 5.0
"""The whole state of a large pool takes its time, and no request waits for it."""
_GRACE_S = 0.01
LAZY_S = 0.001
MAX_BATCH = 256
_NO_CHANGES = len(b"[]")


@dataclass(frozen=True, slots=True)
class ChannelVersions:
    """How far the two channels have come: all changes, and those without counts."""

    changes: int
    news: int


@dataclass(frozen=True, slots=True)
class AppliedChanges:
    """What a batch changed, for the copy of whoever sent it."""

    versions: ChannelVersions
    now_ms: int
    changes: bytes
    """JSON list, as published."""


@dataclass(slots=True)
class _QueuedOperation:
    operation: bytes
    """As JSON: what cannot be written fails where it was asked for, not a batch of others."""
    settle: Callable[[Any], None]
    """Given the result, or the RegistryUnavailable that took its place."""


def read_script() -> bytes:
    """The server-side script: its parts in the order of their names."""
    folder = resources.files("registry.redis") / "scripts"
    parts = sorted((part for part in folder.iterdir() if part.name.endswith(".lua")),
                   key=lambda part: part.name)  # fmt: skip
    return b"\n".join(part.read_bytes() for part in parts)


class Transactions:
    """Runs operations against one pool's keys over one connection of its own.

    One batch is on its way at a time; what comes meanwhile makes the next. Plain callbacks, since a
    task per batch cost as much as the batch. While the link pauses, operations fail at once.
    """

    def __init__(self, url: str, pool: str, origin: str) -> None:
        self._client = origin
        self._losses = 0
        self.origin = origin
        """Marks our own changes where they are published. It changes with each lost reply, whose
        changes, published late, are then taken in like anybody else's."""
        self.prefix = f"pilotlight:{{{pool}}}:"
        self._script = read_script()
        self._sha = hashlib.sha1(self._script, usedforsecurity=False).hexdigest()
        self._link = ReconnectingConnection(url, self.prefix, self._give_script)
        self._connector: asyncio.Task[None] | None = None
        self._pending: list[_QueuedOperation] = []
        self._under_way: Sequence[_QueuedOperation] = ()
        self._is_scheduled = False
        self._lazy_timer: asyncio.TimerHandle | None = None
        self.on_applied: Callable[[AppliedChanges], None] | None = None
        """Called with each batch's changes before its callers hear of the result."""
        self.on_lost: Callable[[], None] | None = None
        """Called when a batch may have changed something that `on_applied` will never hear of."""

    def submit(self, *operation: Any) -> asyncio.Future[Any]:
        """Queue one operation; the future holds its result or raises RegistryUnavailable."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.submit_then(_settler(future), *operation)
        return future

    def submit_then(self, settle: Callable[[Any], None], *operation: Any) -> None:
        """Queue one operation; `settle` gets its result or a RegistryUnavailable."""
        self._pending.append(_QueuedOperation(orjson.dumps(operation), settle))
        if not self._under_way and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def submit_lazily(self, settle: Callable[[Any], None], *operation: Any) -> None:
        """Queue an operation that may go out with the next one, at most `LAZY_S` later."""
        self._pending.append(_QueuedOperation(orjson.dumps(operation), settle))
        if not self._under_way and not self._is_scheduled and self._lazy_timer is None:
            loop = asyncio.get_running_loop()
            self._lazy_timer = loop.call_later(LAZY_S, self._flush)

    async def snapshot(self) -> tuple[ChannelVersions, int, Sequence[Any]]:
        """The versions, the registry's time in ms, and the whole state of the pool."""
        reads = hash_reads(self.prefix)
        versions, now_ms, told, hashes = await self._alone("snapshot", SNAPSHOT_TIMEOUT_S, *reads)
        return versions, now_ms, read_snapshot(told, hashes)

    async def sync(self) -> tuple[ChannelVersions, int]:
        """Sweep what has expired; the versions after it, and the registry's time in ms."""
        versions, now_ms, _, _ = await self._alone("sync", REPLY_TIMEOUT_S)
        return versions, now_ms

    async def _alone(
        self, name: str, timeout_s: float, *reads: Sequence[str]
    ) -> tuple[ChannelVersions, int, Any, Sequence[Any]]:
        """One operation in a batch of its own, with the versions and time of its reply.

        The replies to `reads` are of the same instant.
        """
        connection = await self._link.connected(REPLY_TIMEOUT_S)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._evaluate(connection, b'[["%b"]]' % name.encode(), _settler(future), *reads)
        try:
            async with asyncio.timeout(timeout_s):
                reply = await future
        except TimeoutError as error:
            connection.close()
            self._lost()
            raise too_late(timeout_s) from error
        except RegistryUnavailable:
            connection.close()
            self._lost()
            raise
        (version, news, now_ms, results, changes), *hashes = reply if reads else [reply]
        versions = ChannelVersions(version, news)
        self._applied(versions, now_ms, changes)
        (result,) = orjson.loads(results)
        if _is_error(result):
            raise RegistryRefused(result["error"])
        return versions, now_ms, result, hashes

    async def close(self) -> None:
        """Let what is queued go out, then drop the connection."""
        if self._pending or self._under_way:
            with contextlib.suppress(RegistryUnavailable):
                await self.submit("sync")
        if self._connector is not None:
            self._connector.cancel()
        await self._link.close()

    # A batch

    def _flush(self) -> None:
        """Send what is queued, unless a batch is on its way."""
        self._is_scheduled = False
        if self._lazy_timer is not None:
            self._lazy_timer.cancel()
            self._lazy_timer = None
        if self._under_way or not self._pending:
            return
        connection = self._link.open
        if connection is None:
            self._reconnect()
            return
        batch, self._pending = self._pending[:MAX_BATCH], self._pending[MAX_BATCH:]
        operations = b"[%b]" % b",".join([item.operation for item in batch])
        self._under_way = batch
        loop = asyncio.get_running_loop()
        timer = loop.call_later(REPLY_TIMEOUT_S, self._give_up, batch, connection)

        def settle(reply: Any) -> None:
            timer.cancel()
            self._settle_batch(batch, connection, reply)

        self._evaluate(connection, operations, settle)

    def _evaluate(
        self,
        connection: RedisConnection,
        operations: bytes,
        settle: Callable[[Any], None],
        *reads: Sequence[str],
    ) -> None:
        """Run a batch; a server that lost our script gets it again.

        With `reads`, which see what the batch left, `settle` gets the replies of all in a list.
        """
        command = ("EVALSHA", self._sha, "1", self.prefix, operations, self.origin)

        def send(settle: Callable[[Any], None]) -> None:
            if reads:
                connection.call_together_then(settle, command, *reads)
            else:
                connection.call_then(settle, *command)

        def hear(reply: Any) -> None:
            if isinstance(reply, RegistryRefused) and reply.code == "NOSCRIPT":
                connection.call_then(_ignore, "SCRIPT", "LOAD", self._script)
                send(settle)
            else:
                settle(reply)

        send(hear)

    def _give_up(self, batch: Sequence[_QueuedOperation], connection: RedisConnection) -> None:
        """Close the connection, unless only this process was late and the reply lies there."""

        def close() -> None:
            if self._under_way is batch:
                self._link.pause()
                connection.close()

        asyncio.get_running_loop().call_later(_GRACE_S, close)

    def _settle_batch(
        self, batch: Sequence[_QueuedOperation], connection: RedisConnection, reply: Any
    ) -> None:
        self._under_way = ()
        if isinstance(reply, RegistryUnavailable):
            connection.close()  # perhaps no master any more: look again
            self._lost()
            _fail(batch, reply)
        else:
            version, news, now_ms, results, changes = reply
            self._applied(ChannelVersions(version, news), now_ms, changes)
            for item, result in zip(batch, orjson.loads(results), strict=True):
                if _is_error(result):
                    connection.close()  # perhaps not the master any more: look again
                    result = RegistryRefused(result["error"])
                _settle(item, result)
        if self._pending and not self._is_scheduled:
            self._flush()

    def _lost(self) -> None:
        self._losses += 1
        self.origin = f"{self._client}.{self._losses}"
        if self.on_lost is not None:
            self.on_lost()

    def _applied(self, versions: ChannelVersions, now_ms: int, changes: bytes) -> None:
        if self.on_applied is not None and len(changes) > _NO_CHANGES:
            self.on_applied(AppliedChanges(versions, now_ms, changes))

    # The connection

    async def _give_script(self, connection: RedisConnection) -> None:
        await connection.call("SCRIPT", "LOAD", self._script)

    def _reconnect(self) -> None:
        """Connect and then flush; in the pause after a failure, fail what is queued at once."""
        try:
            self._link.check_pause()
        except RegistryUnavailable as error:
            self._fail_pending(error)
            return
        if self._connector is None:
            self._connector = asyncio.get_running_loop().create_task(self._connect_and_flush())

    async def _connect_and_flush(self) -> None:
        try:
            await self._link.connected(REPLY_TIMEOUT_S)
        except RegistryUnavailable as error:
            self._fail_pending(error)
        except Exception as error:
            logger.exception("connecting to Redis failed in a way that was not expected")
            self._fail_pending(RegistryUnavailable(f"cannot connect to Redis: {error!r}"))
        finally:
            self._connector = None
        self._flush()

    def _fail_pending(self, error: RegistryUnavailable) -> None:
        failed, self._pending = self._pending, []
        _fail(failed, error)


def _settler(future: asyncio.Future[Any]) -> Callable[[Any], None]:
    def settle(result: Any) -> None:
        if future.done():
            return
        if isinstance(result, RegistryUnavailable):
            future.set_exception(result)
        else:
            future.set_result(result)

    return settle


def _settle(item: _QueuedOperation, result: Any) -> None:
    """Tell one caller; a fault of that caller's must not keep the result from the others."""
    try:
        item.settle(result)
    except Exception:
        logger.exception("a caller failed at its result", extra={"operation": item.operation[:20]})


def _ignore(reply: Any) -> None:
    del reply


def _is_error(result: Any) -> bool:
    """Whether an operation failed in the script; an empty list comes as an empty object, too."""
    return type(result) is dict and "error" in result


def _fail(batch: Sequence[_QueuedOperation], error: RegistryUnavailable) -> None:
    for item in batch:
        _settle(item, error)
