"""The scheduler's side of a runner: starts it, exchanges frames, kills one that does not answer."""

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from common.child_process import Child, Command, start
from common.frames import BadFrame
from registry.domain.graph import KIND as GRAPH
from workflows.service.errors import BadFile, RunnerFailed
from workflows.service.settings import SchedulerSettings

logger = logging.getLogger(__name__)

_REPOSITORY: Final = str(Path(__file__).resolve().parents[2])
_START: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); import runpy; "
    "runpy.run_module('workflows.runner', run_name='__main__', alter_sys=True)"
)
"""`-I` ignores PYTHONPATH; the runner executes the same code as its scheduler."""
PING_INTERVAL_S: Final = 1.0
MAX_UNANSWERED: Final = 5
"""Pings after which a runner that does not answer is killed; a busy machine misses fewer. They are
counted: after a pause of the scheduler, the time since an answer would be the pause's."""
LOAD_TIMEOUT_S: Final = 20.0
MAX_STEPS: Final = 256
"""That one run may begin: a loop without an end is ended by it."""


class RunnerProcess:
    """One process with one workflow's file. Belongs to the event loop that starts it."""

    def __init__(
        self,
        settings: SchedulerSettings,
        on_message: Callable[[dict[str, Any]], None],
        on_exit: "Callable[[RunnerProcess], None]",
    ) -> None:
        self._settings = settings
        self._on_message = on_message
        self._on_exit = on_exit
        self._child: Child | None = None
        self._unanswered = 0
        self.is_stopping = False
        """It ends because the scheduler wants it to."""

    @property
    def pid(self) -> int:
        return self._child.pid if self._child is not None else 0

    async def load(self, definition: Mapping[str, Any]) -> dict[str, Any]:
        """Start the process and load a file or a graph; what it is. Raises BadFile, RunnerFailed.

        `definition`: `source` of a file; as `GraphSpec.definition` of a graph.
        """
        self._child = await self._start()
        if definition.get("kind") == GRAPH:
            fields = {key: definition[key] for key in ("graph", "deadline_s")}
            self.send({"type": "load-graph", **fields})
        else:
            self.send({"type": "load", "source": definition["source"]})
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                found = await self._child.receive()
        except TimeoutError:
            await self.stop()
            raise BadFile(f"the file did not load within {LOAD_TIMEOUT_S:g} s") from None
        except BadFrame as error:
            await self.stop()
            raise BadFile(f"the file broke its runner: {error}") from error
        match reply := None if found is None else found[0]:
            case {"type": "loaded"} if reply is not None:
                return reply
            case {"type": "refused", "message": str(message), "line": line}:
                await self.stop()
                where = f" (line {line})" if line else ""
                raise BadFile(f"{message}{where}", line=line if isinstance(line, int) else None)
        status = await self.stop()
        raise BadFile(f"the file ended its runner (status {status}) while it was loaded")

    async def _start(self) -> Child:
        settings = (self._settings.runner_memory, MAX_STEPS)
        words = [sys.executable, "-I", "-c", _START, _REPOSITORY, *map(str, settings)]
        try:
            return await start(Command("runner", words, {}, folder=Path("/")), is_connected=True)
        except OSError as error:
            raise RunnerFailed(f"no runner can be started: {error}") from error

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; raises BadFrame for one that is too large."""
        if self._child is not None:
            self._child.send(message)

    async def run(self) -> None:
        """Pass messages on until the process ends; `on_exit` is called then, whatever the cause."""
        try:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(self._watch())
                await self._receive()
                watching.cancel()
        finally:
            await self.stop()
            self._on_exit(self)

    async def _receive(self) -> None:
        if self._child is None:
            return
        try:
            while (found := await self._child.receive()) is not None:
                message, self._unanswered = found[0], 0
                if message.get("type") != "pong":
                    self._on_message(message)
        except BadFrame as error:
            logger.warning("runner sent a bad frame", extra={"error": str(error)})

    async def _watch(self) -> None:
        """Kill the process if it does not answer: its interpreter is blocked."""
        while True:
            await asyncio.sleep(PING_INTERVAL_S)
            if self._unanswered == MAX_UNANSWERED:
                logger.warning("runner does not answer and is killed", extra={"pid": self.pid})
                self.kill()
                return
            self._unanswered += 1
            self.send({"type": "ping"})

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    async def stop(self) -> int | None:
        """End the process; its exit status."""
        return None if self._child is None else await self._child.end(grace_s=0.0)
