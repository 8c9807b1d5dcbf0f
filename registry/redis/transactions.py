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

from registry.domain.cluster import Snapshot
from registry.domain.pod_state import ReservationRequest
from registry.errors import RegistryRefused, RegistryUnavailable
from registry.redis.redis_connection import (
    ReconnectingConnection,
    RedisConnection,
    reply_timeout,
    resolver,
)
from registry.redis.script import (
    Call,
    CallQueue,
    ChannelVersions,
    OnResult,
    ServerScript,
    decode_answer,
    encode_batch,
    read_snapshot,
)

logger = logging.getLogger(__name__)

REPLY_TIMEOUT_S: Final = 0.8
"""Callers get RegistryUnavailable within a second when Redis is unreachable or hangs."""
SNAPSHOT_TIMEOUT_S: Final = 5.0
"""The state of a large pool takes long to read, and no request waits for it."""
_GRACE_S: Final = 0.01
"""To read a reply that has arrived where this process, not Redis, was late: paused, perhaps."""
DEFERRAL_S: Final = 0.001
_NO_CHANGES: Final = len(b"[]")


@dataclass(frozen=True, slots=True)
class AppliedChanges:
    """The changes of a batch, for the sender's own copy of the pool."""

    versions: ChannelVersions
    now_ms: int
    changes: bytes
    """JSON list, as published."""


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
        self._queue = CallQueue()
        self._in_flight: Sequence[Call] = ()
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

    def submit_with_callback(self, operation: bytes, on_result: OnResult) -> None:
        """Queue one operation as JSON, so that what JSON cannot express fails at the caller."""
        self._queue.add(operation, on_result)
        self._send_soon()

    def submit_reservation(
        self,
        name: str,
        id_: str,
        terms: ReservationRequest,
        on_result: OnResult,
        *,
        is_deferred: bool = False,
    ) -> None:
        """Queue an operation of a reservation; if deferred, it waits for `DEFERRAL_S` at most."""
        self._queue.add_reservation(name, id_, terms, on_result)
        if not is_deferred:
            self._send_soon()
        elif not (self._in_flight or self._is_scheduled or self._deferral):
            loop = asyncio.get_running_loop()
            self._deferral = loop.call_later(DEFERRAL_S, self._flush)

    def _send_soon(self) -> None:
        """At the end of this turn of the loop, or after the batch in flight."""
        if not (self._in_flight or self._is_scheduled):
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    async def connect(self) -> None:
        """Reach Redis, which changes nothing there. Raises RegistryUnavailable."""
        await self._connection.connect(REPLY_TIMEOUT_S)

    async def snapshot(self, *, is_kept_up: bool = True) -> tuple[ChannelVersions, int, Snapshot]:
        """The versions, the registry's time in ms, and the whole state of the pool.

        Not `is_kept_up`: a look at it, also in a Redis that refuses to write.
        """
        operation = "snapshot" if is_kept_up else "look"
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
        arguments = ("op", 1, orjson.dumps(operation))
        self._script.run(connection, arguments, self.origin, resolver(future), *reads)
        try:
            reply = await _received(future, timeout_s)
        except TimeoutError as error:
            self._lose_batch(connection)
            raise reply_timeout(timeout_s) from error
        except RegistryUnavailable:
            self._lose_batch(connection)
            raise
        (version, news, now_ms, changes, ((_, answer, refusal),)), *hashes = (
            reply if reads else [reply]
        )
        versions = ChannelVersions(version, news)
        self._report_applied(versions, now_ms, changes)
        if refusal is not None:
            raise decode_answer("op", refusal)
        result = decode_answer("op", answer)
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
        batch = self._in_flight = self._queue.take()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(REPLY_TIMEOUT_S, self._time_out, batch, connection)

        def on_reply(reply: Any) -> None:
            timer.cancel()
            self._finish_batch(batch, connection, reply)

        self._script.run(connection, encode_batch(batch), self.origin, on_reply)

    def _time_out(self, batch: Sequence[Call], connection: RedisConnection) -> None:
        """Close the connection after `_GRACE_S`."""

        def close() -> None:
            if self._in_flight is batch:
                self._connection.back_off()
                connection.close()

        asyncio.get_running_loop().call_later(_GRACE_S, close)

    def _finish_batch(self, batch: Sequence[Call], connection: RedisConnection, reply: Any) -> None:
        self._in_flight = ()
        if isinstance(reply, RegistryUnavailable):
            self._lose_batch(connection)
            self._fail(batch, reply)
        else:
            version, news, now_ms, changes, answers = reply
            self._report_applied(ChannelVersions(version, news), now_ms, changes)
            for call, (granted, answer, refusal) in zip(batch, answers, strict=True):
                if granted:
                    _call_back(call, call.on_results[:granted], decode_answer(call.name, answer))
                if granted < len(call.on_results):
                    result = decode_answer(call.name, refusal)
                    if isinstance(result, RegistryRefused):
                        connection.close()  # the server may not be the master now: find it again
                    _call_back(call, call.on_results[granted:], result)
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
        queue, self._queue = self._queue, CallQueue()
        while queue:
            self._fail(queue.take(), error)

    def _fail(self, batch: Sequence[Call], error: RegistryUnavailable) -> None:
        for call in batch:
            _call_back(call, call.on_results, error)


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


def _call_back(call: Call, on_results: Sequence[OnResult], result: Any) -> None:
    """Report a result; an error in one callback must not prevent the other callbacks."""
    for on_result in on_results:
        try:
            on_result(result)
        except Exception:
            logger.exception("callback of an operation failed", extra={"operation": call.name})
