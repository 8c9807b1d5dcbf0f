"""The gateway's side of looking at data: the process, what it has loaded, and looks with a timeout.

The process is started when an application wants one, and again when it ended. While there is no
answer in time, requests are planned without evidence; none is lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, cast

from gateway.sneakpeek.frames import (
    FrameReader,
    Kind,
    Load,
    Loaded,
    Look,
    Seen,
    decode_loaded,
    decode_seen,
    encode,
    encode_look,
)
from registry.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from registry.domain.application import ApplicationSpec
    from registry.domain.cluster import ClusterState

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 0.02
"""Longest time that a request waits for its look, and at most this part of its deadline:"""
TIMEOUT_SHARE: Final = 0.1
MAX_IN_FLIGHT: Final = 256
MAX_UNREAD_BYTES: Final = 8 << 20
SILENT_S: Final = 5.0
"""A process that answers nothing for so long is killed."""
_RETRY_S: Final = 5.0
"""Between two attempts to read files that cannot be used."""
_RESTART: Final = Backoff(0.2, 10.0)
_STABLE_S: Final = 30.0
"""A process that ran so long is started again at once."""
_ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)


class LookOutcome(StrEnum):
    """A closed set: also a metric label."""

    SEEN = "seen"
    LATE = "late"
    UNREADABLE = "unreadable"
    """The process could not read the body."""
    TOO_LARGE = "too-large"
    """The body is not in memory."""
    UNAVAILABLE = "unavailable"
    """The process does not run, has not read the application's files, or is busy."""


@dataclass(frozen=True, slots=True)
class LookResult:
    outcome: LookOutcome
    seen: Seen | None = None
    accuracy: float | None = None
    """Profiled, of the look itself."""


_NOTHING: Final = {outcome: LookResult(outcome) for outcome in LookOutcome}


class SneakPeekClient:
    """Looks at requests' data in a process of its own, which `run` keeps alive."""

    def __init__(
        self, state: ClusterState, count: Callable[[str], object],
        is_granted: Callable[[str, str], bool],
    ) -> None:  # fmt: skip
        """`count` a look by its outcome; `is_granted`: may a namespace have this URI read."""
        self._state = state
        self._count = count
        self._is_granted = is_granted
        self._loop = asyncio.get_running_loop()
        self._wanted: dict[str, Load] = {}
        self._models_version = -1
        self._is_wanted = asyncio.Event()
        self._loaded: dict[str, Loaded] = {}
        self._pending: dict[int, asyncio.Future[Seen]] = {}
        self._connection: _Connection | None = None
        self._number = 0
        self._late_since_s: float | None = None
        """Since when no look was answered, while some were late."""
        self.pid: int | None = None
        self.restarts_total = 0

    def problem(self, application: str) -> str:
        """Why the application's data is not looked at now; empty: it is."""
        loaded = self._loaded.get(application)
        if loaded is None:
            return "the looking process has not read its files yet"
        return loaded.problem

    def sync(self) -> None:
        """Load what applications want now; called after each change of the cluster state."""
        if self._models_version == self._state.models_version:
            return
        self._models_version = self._state.models_version
        wanted = {
            str(name): _load_of(spec)
            for name, spec in self._state.applications.items()
            if spec.sneak_peek is not None
        }
        for name in self._wanted.keys() - wanted.keys():
            self._loaded.pop(name, None)
            self._send(encode(Load(name, None)))
        changed = [load for name, load in wanted.items() if self._wanted.get(name) != load]
        self._wanted = wanted
        for load in changed:
            self._loaded.pop(load.application, None)
            self._request(load)
        if wanted:
            self._is_wanted.set()
        else:
            self._is_wanted.clear()

    def _request(self, load: Load) -> None:
        namespace = load.application.partition("/")[0]
        if load.uri is not None and not self._is_granted(namespace, load.uri):
            problem = f"namespace {namespace} may not have {load.uri} read (--sneakpeek-prefixes)"
            self._loaded[load.application] = Loaded(load.application, load.uri, problem=problem)
            return
        self._send(encode(load))

    async def look(
        self, application: str, body: Sequence[bytes], *, json_bytes: int, deadline_s: float
    ) -> LookResult:
        """What a body's data says; within `TIMEOUT_S`, never an exception."""
        result = await self._look(application, body, json_bytes, deadline_s)
        self._count(result.outcome)
        return result

    def unseen(self) -> LookResult:
        """The result for a body that is not in memory."""
        self._count(LookOutcome.TOO_LARGE)
        return _NOTHING[LookOutcome.TOO_LARGE]

    async def _look(
        self, application: str, body: Sequence[bytes], json_bytes: int, deadline_s: float
    ) -> LookResult:
        loaded = self._loaded.get(application)
        is_usable = loaded is not None and not loaded.problem and self._connection is not None
        if loaded is None or not is_usable or self._is_behind():
            return _NOTHING[LookOutcome.UNAVAILABLE]
        self._number += 1
        number, timeout_s = self._number, min(TIMEOUT_S, deadline_s * TIMEOUT_SHARE)
        future = self._pending[number] = self._loop.create_future()
        look = Look(number, time.monotonic() + timeout_s, application, json_bytes, b"")
        self._send(b"".join(encode_look(look, body)))
        timer = self._loop.call_later(timeout_s, _give_up, future, LookOutcome.LATE)
        try:
            seen = await future
        finally:
            timer.cancel()
            self._pending.pop(number, None)
        if seen is _LATE:
            self._late_since_s = self._late_since_s or time.monotonic()
            return _NOTHING[LookOutcome.LATE]
        if seen is _LOST:
            return _NOTHING[LookOutcome.UNAVAILABLE]
        outcome = LookOutcome.SEEN if seen.rows or seen.problem else LookOutcome.UNREADABLE
        return LookResult(outcome, seen, loaded.accuracy)

    def _is_behind(self) -> bool:
        """Whether the process does not keep up; one that is silent for long is replaced."""
        connection = self._connection
        if connection is None:
            return True
        unread = connection.transport.get_write_buffer_size()
        if self._late_since_s is not None and time.monotonic() - self._late_since_s > SILENT_S:
            logger.warning("looking process does not answer")
            self._late_since_s = None
            connection.transport.abort()
            return True
        return unread > MAX_UNREAD_BYTES or len(self._pending) >= MAX_IN_FLIGHT

    def _send(self, data: bytes) -> None:
        if self._connection is not None:
            self._connection.transport.write(data)

    # The process

    async def run(self) -> None:
        """Keep the process alive while an application wants it, until cancelled."""
        failures = 0
        while True:
            await self._is_wanted.wait()
            started_s = self._loop.time()
            await self._run_once()
            failures = 1 if self._loop.time() - started_s > _STABLE_S else failures + 1
            self.restarts_total += 1
            logger.warning("looking process ended", extra={"failures": failures})
            await asyncio.sleep(_RESTART.pause_s(failures))

    async def _run_once(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "gateway.sneakpeek", str(theirs.fileno()),
                pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL, env={**os.environ, **_ONE_THREAD},
            )  # fmt: skip
        try:
            _, connection = await self._loop.create_connection(
                lambda: _Connection(self._on_message), sock=ours
            )
            self._connection, self.pid = connection, process.pid
            for load in self._wanted.values():
                self._request(load)
            await self._retry_until(connection.closed)
        finally:
            self._disconnect()
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _retry_until(self, closed: asyncio.Future[None]) -> None:
        """Read files that could not be used again from time to time: they may be trained later."""
        while not closed.done():
            await asyncio.wait([closed], timeout=_RETRY_S)
            for name, load in self._wanted.items():
                if (loaded := self._loaded.get(name)) is not None and loaded.problem:
                    self._request(load)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.transport.close()
        self._connection = self.pid = None
        self._loaded.clear()
        for future in self._pending.values():
            _give_up(future, LookOutcome.UNAVAILABLE)

    def _on_message(self, kind: Kind, content: bytes) -> None:
        if kind is Kind.SEEN:
            seen = decode_seen(content)
            self._late_since_s = None
            future = self._pending.get(seen.number)
            if future is not None and not future.done():
                future.set_result(seen)
        elif kind is Kind.LOADED:
            loaded = decode_loaded(content)
            wanted = self._wanted.get(loaded.application)
            if wanted is not None and wanted.uri == loaded.uri:
                before = self._loaded.get(loaded.application)
                self._loaded[loaded.application] = loaded
                if loaded.problem and before != loaded:
                    logger.warning("data is not looked at", extra={"problem": loaded.problem})


_LATE: Final = Seen(-1)
_LOST: Final = Seen(-2)


def _give_up(future: asyncio.Future[Seen], outcome: LookOutcome) -> None:
    if not future.done():
        future.set_result(_LATE if outcome is LookOutcome.LATE else _LOST)


def _load_of(spec: ApplicationSpec) -> Load:
    assert spec.sneak_peek is not None
    peek = spec.sneak_peek
    return Load(str(spec.name), peek.uri, peek.k, spec.classes, spec.inputs, spec.output)


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, on_message: Callable[[Kind, bytes], None]) -> None:
        self._on_message = on_message
        self._reader = FrameReader()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        for kind, content in self._reader.feed(data):
            self._on_message(kind, content)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
