"""The gateway's side of looking at data: the process, what it has loaded, and looks with a timeout.

The process is started when an application wants one, and again when it ended. While there is no
answer in time, requests are planned without evidence; none is lost.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from registry.domain.application import ApplicationSpec
from registry.domain.cluster import ClusterState
from variants.function_process import FunctionProcess, ProcessEnded

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 0.02
"""Longest time that a request waits for its look, and at most this part of its deadline:"""
TIMEOUT_SHARE: Final = 0.1
MAX_UNREAD_BYTES: Final = 8 << 20
SILENT_S: Final = 5.0
"""A process that answers nothing for so long is killed."""
_RETRY_S: Final = 5.0
"""Between two attempts to read files that cannot be used."""
_NOT_READ: Final = "the looking process has not read its files yet"


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


@dataclass(eq=False)
class SneakPeekClient:
    """Looks at requests' data in a process of its own, which `run` keeps alive."""

    state: ClusterState
    count: Callable[[str], object]
    """Counts a look by its outcome."""
    is_granted: Callable[[str, str], bool]
    """May a namespace have this URI read."""

    def __post_init__(self) -> None:
        self._wanted: dict[str, ApplicationSpec] = {}
        self._models_version = -1
        self._read: dict[str, tuple[object, str]] = {}
        """By application: what its look depends on, and why its files cannot be used; empty: they
        are in use."""
        self._changed = asyncio.Event()
        self.process = FunctionProcess(
            "variants.look_process",
            silent_s=SILENT_S,
            on_start=self._changed.set,
            on_end=self._read.clear,
        )

    def problem(self, application: str) -> str:
        """Why the application's data is not looked at now; empty: it is."""
        return self._read.get(application, (None, _NOT_READ))[1]

    def sync(self) -> None:
        """Load what applications want now; called after each change of the cluster state."""
        if self._models_version == self.state.models_version:
            return
        self._models_version = self.state.models_version
        self._wanted = {
            str(name): spec
            for name, spec in self.state.applications.items()
            if spec.sneak_peek is not None
        }
        for name, (files, _) in list(self._read.items()):
            if files != _looked_with(self._wanted.get(name)):
                del self._read[name]
        self.process.want(is_wanted=bool(self._wanted))
        self._changed.set()

    async def _keep_loaded(self) -> None:
        """Also read files that could not be used again: they may be trained later."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_S):
                    await self._changed.wait()
            self._changed.clear()
            for name, spec in list(self._wanted.items()):
                files = _looked_with(spec)
                if self._read.get(name) != (files, ""):
                    with suppress(ProcessEnded):  # what it had read is read again
                        problem = await self._load(name, spec)
                        if files == _looked_with(self._wanted.get(name)):
                            self._note(name, files, problem)

    async def _load(self, name: str, spec: ApplicationSpec) -> str:
        """Why the files cannot be used; raises ProcessEnded."""
        namespace, uri = spec.name.namespace, spec.sneak_peek.uri if spec.sneak_peek else ""
        if not self.is_granted(namespace, uri):
            return f"namespace {namespace} may not have {uri} read by the pool's rules"
        problem: str = await self.process.call("load", name, spec)
        return problem

    def _note(self, name: str, files: object, problem: str) -> None:
        if problem and self.problem(name) != problem:
            logger.warning("data is not looked at", extra={"problem": problem})
        self._read[name] = files, problem

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
        self.count(found.outcome)
        return found

    async def _look(
        self, application: str, body: Sequence[bytes], json_length: str | None, deadline_s: float
    ) -> Look:
        child = self.process.child
        if child is None or self.problem(application) or child.unread_bytes > MAX_UNREAD_BYTES:
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
            group.create_task(self._keep_loaded())


def _looked_with(spec: ApplicationSpec | None) -> object:
    """What a look at the application's data depends on."""
    peek = spec and spec.sneak_peek
    return spec and peek and (peek.uri, spec.classes, spec.inputs, spec.output)
