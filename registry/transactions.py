"""Registry operations as atomic server-side scripts, batched.

While one batch is on its way, further operations gather for the next: at low load an operation
costs one round trip, at high load many share one.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

import orjson

from registry.errors import RegistryUnavailable
from registry.resp import RespConnection, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

REPLY_TIMEOUT_S = 2.0
MAX_BATCH = 256
_RETRY_FIRST_S = 0.05
_RETRY_LONGEST_S = 1.0


@dataclass(frozen=True, slots=True)
class Applied:
    """What a batch changed, for the copy of whoever sent it."""

    version: int
    now_ms: int
    changes: bytes
    """JSON list, as published."""


@dataclass(slots=True)
class _Pending:
    operation: Sequence[Any]
    settle: Callable[[Any], None]
    """Given the result, or the RegistryUnavailable that took its place."""


def read_script() -> bytes:
    """The server-side script: its parts in the order of their names."""
    folder = resources.files("registry") / "scripts"
    parts = sorted((part for part in folder.iterdir() if part.name.endswith(".lua")),
                   key=lambda part: part.name)  # fmt: skip
    return b"\n".join(part.read_bytes() for part in parts)


class Transactions:
    """Runs operations against one pool's keys over one connection of its own.

    After a failure it tries to connect again no sooner than a growing pause; until then every
    operation fails at once, so that nobody waits for a server that is away.
    """

    def __init__(self, url: str, pool: str, origin: str) -> None:
        self._url = url
        self._origin = origin
        self.prefix = f"pilotlight:{{{pool}}}:"
        self._script = read_script()
        self._sha = hashlib.sha1(self._script, usedforsecurity=False).hexdigest()
        self._connection: RespConnection | None = None
        self._pending: list[_Pending] = []
        self._runner: asyncio.Task[None] | None = None
        self._pause_s = _RETRY_FIRST_S
        self._retry_at_s = 0.0
        self.on_applied: Callable[[Applied], None] | None = None
        """Called with each batch's changes before its callers hear of the result."""

    def submit(self, *operation: Any) -> asyncio.Future[Any]:
        """Queue one operation; the future holds its result or raises RegistryUnavailable."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def settle(result: Any) -> None:
            if future.done():
                return
            if isinstance(result, RegistryUnavailable):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.submit_then(settle, *operation)
        return future

    def submit_then(self, settle: Callable[[Any], None], *operation: Any) -> None:
        """Queue one operation; `settle` gets its result or a RegistryUnavailable."""
        self._pending.append(_Pending(operation, settle))
        if self._runner is None:
            self._runner = asyncio.get_running_loop().create_task(self._run())

    async def snapshot(self) -> tuple[int, int, Sequence[Any]]:
        """The version, the registry's time in ms, and the whole state of the pool."""
        version, now_ms, results, _ = await self._call(b'[["snapshot"]]')
        return version, now_ms, orjson.loads(results)[0]

    async def close(self) -> None:
        """Let what is queued go out, then drop the connection."""
        if self._runner is not None:
            await asyncio.wait([self._runner], timeout=REPLY_TIMEOUT_S)
        if self._connection is not None:
            self._connection.close()
            await self._connection.wait_closed()

    async def _run(self) -> None:
        """Owns the connection while anything is queued; ends when nothing is."""
        try:
            while self._pending:
                batch, self._pending = self._pending[:MAX_BATCH], self._pending[MAX_BATCH:]
                await self._run_batch(batch)
        finally:
            self._runner = None

    async def _run_batch(self, batch: Sequence[_Pending]) -> None:
        try:
            version, now_ms, results, changes = await self._call(
                orjson.dumps([item.operation for item in batch])
            )
        except RegistryUnavailable as error:
            for item in batch:
                item.settle(error)
            return
        if self.on_applied is not None and len(changes) > 2:
            self.on_applied(Applied(version, now_ms, changes))
        for item, result in zip(batch, orjson.loads(results), strict=True):
            item.settle(result)

    async def _call(self, operations: bytes) -> tuple[int, int, bytes, bytes]:
        connection = await self._connected()
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                reply = await connection.call(
                    "EVALSHA", self._sha, "1", self.prefix, operations, self._origin
                )
        except TimeoutError as error:
            connection.close()
            raise RegistryUnavailable(
                f"Redis did not answer within {REPLY_TIMEOUT_S:g} s"
            ) from error
        except RegistryUnavailable:
            connection.close()  # a server without our script, or no master any more: look again
            raise
        return reply[0], reply[1], reply[2], reply[3]

    async def _connected(self) -> RespConnection:
        if self._connection is not None and self._connection.is_open:
            return self._connection
        now_s = time.monotonic()
        if now_s < self._retry_at_s:
            raise RegistryUnavailable("Redis is away; not asked again yet")
        try:
            connection = await RespConnection.open(await resolve(self._url, self.prefix))
            await connection.call("SCRIPT", "LOAD", self._script)
        except RegistryUnavailable:
            self._retry_at_s = time.monotonic() + self._pause_s
            self._pause_s = min(self._pause_s * 2, _RETRY_LONGEST_S)
            raise
        self._pause_s = _RETRY_FIRST_S
        self._connection = connection
        return connection
