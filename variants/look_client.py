"""The gateway's side of looking at data: the process, what it has loaded, and looks with a timeout.

The process is started when an application wants one, and again when it ended. While there is no
answer in time, requests are planned without evidence; none is lost.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

from registry.domain.application import ApplicationSpec
from registry.domain.cluster import ClusterState
from variants.function_process import FunctionProcess, ProcessEnded

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
class Look:
    """What was found of a request's data."""

    outcome: LookOutcome = LookOutcome.UNAVAILABLE
    accuracy: float | None = None
    """Profiled, of the look itself."""
    rows: tuple[tuple[float, ...], ...] = ()
    """Evidence by row and class; empty: none."""
    is_v2: bool = False
    request_id: str | None = None
    """`id` of a V2 request."""
    is_answerable: bool = False
    """A short circuit may answer: the request asks for no binary tensors or other outputs."""
    problem: str = ""
    """Why no variant of the application can answer the request; empty: none is known."""


class SneakPeekClient:
    """Looks at requests' data in a process of its own, which `run` keeps alive."""

    def __init__(
        self,
        state: ClusterState,
        count: Callable[[str], object],
        is_granted: Callable[[str, str], bool],
    ) -> None:
        """`count` a look by its outcome; `is_granted`: may a namespace have this URI read."""
        self._state = state
        self._count = count
        self._is_granted = is_granted
        self._wanted: dict[str, ApplicationSpec] = {}
        self._models_version = -1
        self._problems: dict[str, str] = {}
        """Why the files of an application cannot be used; empty: they are in use."""
        self.process = FunctionProcess(
            "variants.look_process",
            silent_s=SILENT_S,
            on_start=self._load_all,
            on_end=self._problems.clear,
        )

    def problem(self, application: str) -> str:
        """Why the application's data is not looked at now; empty: it is."""
        return self._problems.get(application, "the looking process has not read its files yet")

    def sync(self) -> None:
        """Load what applications want now; called after each change of the cluster state."""
        if self._models_version == self._state.models_version:
            return
        self._models_version = self._state.models_version
        before = self._wanted
        self._wanted = {
            str(name): spec
            for name, spec in self._state.applications.items()
            if spec.sneak_peek is not None
        }
        for name in {**before, **self._wanted}:
            spec = self._wanted.get(name)
            if _looked_with(before.get(name)) != _looked_with(spec):
                self._problems.pop(name, None)
                if spec is None:
                    self._call("forget", name)
                else:
                    self._load(name, spec)
        self.process.want(is_wanted=bool(self._wanted))

    def _load_all(self) -> None:
        for name, spec in self._wanted.items():
            self._load(name, spec)

    def _load(self, name: str, spec: ApplicationSpec) -> None:
        namespace, uri = spec.name.namespace, spec.sneak_peek.uri if spec.sneak_peek else ""
        if self._is_granted(namespace, uri):
            called = self._call("load", name, spec)
            called.add_done_callback(partial(self._on_loaded, name, spec))
        else:
            problem = f"namespace {namespace} may not have {uri} read (--sneakpeek-prefixes)"
            self._problems[name] = problem

    def _call(self, function: str, *arguments: object) -> asyncio.Future[str]:
        called = self.process.call(function, *arguments)
        called.add_done_callback(asyncio.Future.exception)  # what has ended is loaded again
        return called

    def _on_loaded(self, name: str, spec: ApplicationSpec, done: asyncio.Future[str]) -> None:
        if done.exception() is None and _looked_with(self._wanted.get(name)) == _looked_with(spec):
            problem, before = done.result(), self._problems.get(name)
            self._problems[name] = problem
            if problem and before != problem:
                logger.warning("data is not looked at", extra={"problem": problem})

    async def look(
        self,
        application: ApplicationSpec,
        body: Sequence[bytes] | None,
        *,
        json_length: str | None,
        deadline_s: float,
    ) -> Look:
        """What a body's data says; within `TIMEOUT_S`, never an exception. None: not in memory."""
        if application.sneak_peek is None:
            return Look()
        found = Look(LookOutcome.TOO_LARGE)
        if body is not None:
            found = await self._look(str(application.name), body, json_length, deadline_s)
        self._count(found.outcome)
        return found

    async def _look(
        self, application: str, body: Sequence[bytes], json_length: str | None, deadline_s: float
    ) -> Look:
        child = self.process.child
        if child is None or self.problem(application):
            return Look()
        if child.unread_bytes > MAX_UNREAD_BYTES or len(self.process.pending) >= MAX_IN_FLIGHT:
            return Look()
        timeout_s = min(TIMEOUT_S, deadline_s * TIMEOUT_SHARE)
        try:
            found: Look = await self.process.call(
                "look", application, b"".join(body), json_length, timeout_s=timeout_s
            )
        except TimeoutError:
            return Look(LookOutcome.LATE)
        except ProcessEnded:
            return Look()
        return found

    async def run(self) -> None:
        """Keep the process alive while an application wants it, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.process.run())
            group.create_task(self._retry_periodically())

    async def _retry_periodically(self) -> None:
        """Read files that could not be used again from time to time: they may be trained later."""
        while True:
            await asyncio.sleep(_RETRY_S)
            for name, spec in self._wanted.items():
                if self._problems.get(name):
                    self._load(name, spec)


def _looked_with(spec: ApplicationSpec | None) -> object:
    """What a look at the application's data depends on."""
    peek = spec and spec.sneak_peek
    return spec and peek and (peek.uri, spec.classes, spec.inputs, spec.output)
