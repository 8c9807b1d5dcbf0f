"""Batches of registry operations, each batch one atomic run of the server-side script.

While one batch is in flight, further operations queue for the next: at low load an operation costs
one round trip, at high load many share one.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from registry.errors import RegistryRefused, RegistryUnavailable
from registry.redis.batch import Operation, decode_answer, encode_batch
from registry.redis.redis_connection import (
    ReconnectingConnection,
    RedisConnection,
    reply_timeout,
    resolver,
)
from registry.redis.script import ChannelVersions, ServerScript, read_snapshot

logger = logging.getLogger(__name__)

REPLY_TIMEOUT_S: Final = 0.8
"""Callers get RegistryUnavailable within a second when Redis is unreachable or hangs."""
SNAPSHOT_TIMEOUT_S: Final = 5.0
"""The state of a large pool takes long to read, and no request waits for it."""
_GRACE_S: Final = 0.01
"""To read a reply that has arrived where this process, not Redis, was late: paused, perhaps."""
DEFERRAL_S: Final = 0.001
MAX_BATCH: Final = 256
_NO_CHANGES: Final = len(b"[]")


@dataclass(frozen=True, slots=True)
class AppliedChanges:
    """The changes of a batch, for the sender's own copy of the pool."""

    versions: ChannelVersions
    now_ms: int
    changes: bytes
    """JSON list, as published."""


_Queued = tuple[Operation, Callable[[Any], None]]
"""What gets the result may get a RegistryUnavailable in its place."""


class Transactions:
    """Runs operations on one pool's keys over a connection of its own, one batch at a time.

    It uses plain callbacks, since a task per batch cost as much as the batch. During the backoff
    after a lost connection, operations fail at once.
    """

    def __init__(self, url: str, pool: str, origin: str) -> None:
        self._client = origin
        self._lost_batches = 0
        self.origin = origin
        """Marks our own published changes. It changes with each lost reply, so that the changes of
        such a batch, if they are published late, are applied like those of another client."""
        self.prefix = f"pilotlight:{{{pool}}}:"
        self._script = ServerScript(self.prefix)
        self._connection = ReconnectingConnection(url, self.prefix, self._script.load)
        self._connector: asyncio.Task[None] | None = None
        self._queue: list[_Queued] = []
        self._in_flight: Sequence[_Queued] = ()
        self._is_scheduled = False
        self._deferral: asyncio.TimerHandle | None = None
        self.on_applied: Callable[[AppliedChanges], None] | None = None
        """Called with each batch's changes, before the callbacks of its operations."""
        self.on_lost: Callable[[], None] | None = None
        """Called when a batch may have made changes that are not passed to `on_applied`."""

    def submit(self, *operation: Any) -> asyncio.Future[Any]:
        """Queue one operation; the future holds its result or raises RegistryUnavailable."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.submit_with_callback(orjson.dumps(operation), resolver(future))
        return future

    def submit_with_callback(
        self, operation: Operation, on_result: Callable[[Any], None], *, is_deferred: bool = False
    ) -> None:
        """Queue one operation; `on_result` gets its result or a RegistryUnavailable.

        It is sent at the end of this turn of the loop, or after the batch in flight; if deferred,
        with the next operation, at most `DEFERRAL_S` later.
        """
        self._queue.append((operation, on_result))
        if self._in_flight or self._is_scheduled:
            return
        loop = asyncio.get_running_loop()
        if not is_deferred:
            self._is_scheduled = True
            loop.call_soon(self._flush)
        elif self._deferral is None:
            self._deferral = loop.call_later(DEFERRAL_S, self._flush)

    async def connect(self) -> None:
        """Reach Redis, which changes nothing there. Raises RegistryUnavailable."""
        await self._connection.connect(REPLY_TIMEOUT_S)

    async def snapshot(self) -> tuple[ChannelVersions, int, Sequence[Any]]:
        """The versions, the registry's time in ms, and the whole state of the pool."""
        return await self._read_state("snapshot")

    async def look(self) -> tuple[ChannelVersions, int, Sequence[Any]]:
        """A snapshot that is not kept up to date, also of a Redis that refuses to write."""
        return await self._read_state("look")

    async def _read_state(self, operation: str) -> tuple[ChannelVersions, int, Sequence[Any]]:
        reads = self._script.snapshot_reads()
        versions, now_ms, parts, hashes = await self._run_alone(
            (operation,), SNAPSHOT_TIMEOUT_S, *reads
        )
        return versions, now_ms, read_snapshot(parts, hashes)

    async def sync(self) -> tuple[ChannelVersions, int]:
        """Remove what has expired; the versions after that, and the registry's time in ms."""
        versions, now_ms, _, _ = await self._run_alone(("sync",), REPLY_TIMEOUT_S)
        return versions, now_ms

    async def share_snapshot(self, at_least: int) -> tuple[ChannelVersions, int, str]:
        """Where to get a snapshot of `news`: `stored`, `take`, `wait` or `alone`.

        `at_least`: the version that it must have; 0: the current one.
        """
        operation = ("share_snapshot", at_least)
        versions, now_ms, answer, _ = await self._run_alone(operation, REPLY_TIMEOUT_S)
        return versions, now_ms, str(answer)

    async def command(self, *arguments: str | bytes) -> Any:
        """The reply to one command, a large one perhaps. Raises RegistryUnavailable."""
        connection = await self._connection.connect(REPLY_TIMEOUT_S)
        try:
            return await _received(connection.call(*arguments), SNAPSHOT_TIMEOUT_S)
        except TimeoutError as error:
            self._lose_batch(connection)
            raise reply_timeout(SNAPSHOT_TIMEOUT_S) from error

    async def _run_alone(
        self, operation: Sequence[Any], timeout_s: float, *reads: Sequence[str]
    ) -> tuple[ChannelVersions, int, Any, Sequence[Any]]:
        """Run one operation as a batch of its own; the replies to `reads` are of the same instant.

        Returns:
            Versions and time in ms of the reply, the result, the replies to `reads`.
        """
        connection = await self._connection.connect(REPLY_TIMEOUT_S)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        encoded = orjson.dumps(operation)
        operations = encode_batch([encoded])
        self._script.run(connection, operations, self.origin, resolver(future), *reads)
        try:
            reply = await _received(future, timeout_s)
        except TimeoutError as error:
            self._lose_batch(connection)
            raise reply_timeout(timeout_s) from error
        except RegistryUnavailable:
            self._lose_batch(connection)
            raise
        (version, news, now_ms, changes, (answer,)), *hashes = reply if reads else [reply]
        versions = ChannelVersions(version, news)
        self._report_applied(versions, now_ms, changes)
        result = decode_answer(encoded, answer)
        if isinstance(result, RegistryRefused):
            raise result
        return versions, now_ms, result, hashes

    async def close(self) -> None:
        """Send what is queued, then drop the connection."""
        if self._queue or self._in_flight:
            with contextlib.suppress(RegistryUnavailable):
                await self.submit("sync")
        if self._connector is not None:
            self._connector.cancel()
        await self._connection.close()

    # A batch

    def _flush(self) -> None:
        """Send what is queued, unless a batch is in flight."""
        self._is_scheduled = False
        if self._deferral is not None:
            self._deferral.cancel()
            self._deferral = None
        if self._in_flight or not self._queue:
            return
        connection = self._connection.current
        if connection is None:
            self._reconnect()
            return
        batch, self._queue = self._queue[:MAX_BATCH], self._queue[MAX_BATCH:]
        batch.sort(key=_is_reserving)  # after what frees slots
        operations = encode_batch(operation for operation, _ in batch)
        self._in_flight = batch
        loop = asyncio.get_running_loop()
        timer = loop.call_later(REPLY_TIMEOUT_S, self._time_out, batch, connection)

        def on_reply(reply: Any) -> None:
            timer.cancel()
            self._finish_batch(batch, connection, reply)

        self._script.run(connection, operations, self.origin, on_reply)

    def _time_out(self, batch: Sequence[_Queued], connection: RedisConnection) -> None:
        """Close the connection after `_GRACE_S`."""

        def close() -> None:
            if self._in_flight is batch:
                self._connection.back_off()
                connection.close()

        asyncio.get_running_loop().call_later(_GRACE_S, close)

    def _finish_batch(
        self, batch: Sequence[_Queued], connection: RedisConnection, reply: Any
    ) -> None:
        self._in_flight = ()
        if isinstance(reply, RegistryUnavailable):
            self._lose_batch(connection)
            self._fail(batch, reply)
        else:
            version, news, now_ms, changes, answers = reply
            self._report_applied(ChannelVersions(version, news), now_ms, changes)
            for (operation, on_result), answer in zip(batch, answers, strict=True):
                result = decode_answer(operation, answer)
                if isinstance(result, RegistryRefused):
                    connection.close()  # the server may not be the master any more: find it again
                _call_back(operation, on_result, result)
        if self._queue and not self._is_scheduled:
            self._flush()

    def _lose_batch(self, connection: RedisConnection) -> None:
        connection.close()  # the server may not be the master any more: find it again
        self._lost_batches += 1
        self.origin = f"{self._client}.{self._lost_batches}"
        if self.on_lost is not None:
            self.on_lost()

    def _report_applied(self, versions: ChannelVersions, now_ms: int, changes: bytes) -> None:
        if self.on_applied is not None and len(changes) > _NO_CHANGES:
            self.on_applied(AppliedChanges(versions, now_ms, changes))

    # The connection

    def _reconnect(self) -> None:
        """Connect and then flush; during a backoff, fail what is queued at once."""
        try:
            self._connection.check_backoff()
        except RegistryUnavailable as error:
            self._fail_queue(error)
            return
        if self._connector is None:
            self._connector = asyncio.get_running_loop().create_task(self._connect_and_flush())

    async def _connect_and_flush(self) -> None:
        try:
            await self._connection.connect(REPLY_TIMEOUT_S)
        except RegistryUnavailable as error:
            self._fail_queue(error)
        except Exception as error:
            logger.exception("unexpected error while connecting to Redis")
            self._fail_queue(RegistryUnavailable(f"cannot connect to Redis: {error!r}"))
        finally:
            self._connector = None
        self._flush()

    def _fail_queue(self, error: RegistryUnavailable) -> None:
        failed, self._queue = self._queue, []
        self._fail(failed, error)

    def _fail(self, batch: Sequence[_Queued], error: RegistryUnavailable) -> None:
        for operation, on_result in batch:
            _call_back(operation, on_result, error)


async def _received(reply: asyncio.Future[Any], timeout_s: float) -> Any:
    """The reply; raises TimeoutError where none has arrived `timeout_s` after the call."""
    try:
        done, _ = await asyncio.wait([reply], timeout=timeout_s)
        if not done:
            await asyncio.wait([reply], timeout=_GRACE_S)
        if not reply.done():
            raise TimeoutError
        return await reply
    finally:
        reply.cancel()


def _is_reserving(item: _Queued) -> bool:
    return item[0][0] == "reserve"


def _call_back(operation: Operation, on_result: Callable[[Any], None], result: Any) -> None:
    """Report one result; an error in one callback must not prevent the other callbacks."""
    try:
        on_result(result)
    except Exception:
        logger.exception("callback of an operation failed", extra={"operation": operation[:20]})
