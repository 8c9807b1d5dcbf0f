"""The gateway's side of looking at data: the process, what it has loaded, and looks with a timeout.

The process is started when an application wants one, and again when it ended. While there is no
answer in time, requests are planned without evidence; none is lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from common.child_process import Child, Command, KeptProcess, python_environment, python_module
from gateway.sneakpeek.messages import Load, Loaded, Look, Seen, as_head, message_of
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
_ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)
_RETRY_S: Final = 5.0
"""Between two attempts to read files that cannot be used."""


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


def kept_module(
    module: str, on_message: Callable[[dict[str, Any], bytes], object], *,
    on_start: Callable[[], object], on_end: Callable[[], object],
) -> KeptProcess:  # fmt: skip
    """A process of the gateway's own, with one thread, which starts once it is wanted."""
    env = python_environment({**os.environ, **_ONE_THREAD})
    return KeptProcess(
        Command(module, python_module(module), env), on_message=on_message,
        on_start=on_start, on_end=on_end, is_wanted=False,
    )  # fmt: skip


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
        self._loaded: dict[str, Loaded] = {}
        self._pending: dict[int, asyncio.Future[Seen]] = {}
        self._number = 0
        self._late_since_s: float | None = None
        """Since when no look was answered, while some were late."""
        self.process = kept_module(
            "gateway.sneakpeek", self._on_message, on_start=self._on_start, on_end=self._on_end
        )

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
            self.process.send(as_head(Load(name, None)))
        changed = [load for name, load in wanted.items() if self._wanted.get(name) != load]
        self._wanted = wanted
        for load in changed:
            self._loaded.pop(load.application, None)
            self._request(load)
        self.process.want(is_wanted=bool(wanted))

    def _request(self, load: Load) -> None:
        namespace = load.application.partition("/")[0]
        if load.uri is not None and not self._is_granted(namespace, load.uri):
            problem = f"namespace {namespace} may not have {load.uri} read (--sneakpeek-prefixes)"
            self._loaded[load.application] = Loaded(load.application, load.uri, problem=problem)
            return
        self.process.send(as_head(load))

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
        loaded, child = self._loaded.get(application), self.process.child
        if loaded is None or loaded.problem or child is None or self._is_behind(child):
            return _NOTHING[LookOutcome.UNAVAILABLE]
        self._number += 1
        number, timeout_s = self._number, min(TIMEOUT_S, deadline_s * TIMEOUT_SHARE)
        future = self._pending[number] = self._loop.create_future()
        look = Look(number, time.monotonic() + timeout_s, application, json_bytes)
        child.send(as_head(look), b"".join(body))
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

    def _is_behind(self, child: Child) -> bool:
        """Whether the process does not keep up; one that is silent for long is replaced."""
        if self._late_since_s is not None and time.monotonic() - self._late_since_s > SILENT_S:
            logger.warning("looking process does not answer")
            self._late_since_s = None
            child.abort()
            return True
        return child.unread_bytes > MAX_UNREAD_BYTES or len(self._pending) >= MAX_IN_FLIGHT

    # The process

    async def run(self) -> None:
        """Keep the process alive while an application wants it, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.process.run())
            group.create_task(self._retry_periodically())

    async def _retry_periodically(self) -> None:
        """Read files that could not be used again from time to time: they may be trained later."""
        while True:
            await asyncio.sleep(_RETRY_S)
            for name, load in self._wanted.items():
                if (loaded := self._loaded.get(name)) is not None and loaded.problem:
                    self._request(load)

    def _on_start(self) -> None:
        for load in self._wanted.values():
            self._request(load)

    def _on_end(self) -> None:
        self._loaded.clear()
        for future in self._pending.values():
            _give_up(future, LookOutcome.UNAVAILABLE)

    def _on_message(self, head: dict[str, Any], _: bytes) -> None:
        match message_of(head):
            case Seen() as seen:
                self._late_since_s = None
                future = self._pending.get(seen.number)
                if future is not None and not future.done():
                    future.set_result(seen)
            case Loaded() as loaded:
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
