"""The deployed workflows, and the process of each one's runner, which starts with the first run."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from common.child_process import Child, Command, start
from common.frames import BadFrame
from common.shown_value import shown
from registry.domain.graph import KIND as GRAPH
from registry.domain.model import ModelName
from registry.errors import InvalidModel
from registry.redis.workflow_log import WorkflowLog
from workflows.errors import WorkflowError
from workflows.run import Run, RunStatus
from workflows.runner import Printed
from workflows.settings import SchedulerSettings

logger = logging.getLogger(__name__)

_REPOSITORY: Final = str(Path(__file__).resolve().parents[1])
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


@dataclass(eq=False)
class RunnerProcess:
    """One process with one workflow's file. Belongs to the event loop that starts it."""

    settings: SchedulerSettings
    on_message: Callable[[dict[str, Any]], None]
    on_exit: Callable[[RunnerProcess], None]

    def __post_init__(self) -> None:
        self._child: Child | None = None
        self._unanswered = 0
        self.is_stopping = False
        """It ends because the scheduler wants it to."""

    @property
    def pid(self) -> int:
        return self._child.pid if self._child is not None else 0

    async def load(self, definition: Mapping[str, Any]) -> dict[str, Any]:
        """Start the process and load a file or a graph; what it is. Raises WorkflowError.

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
            fault = f"the file did not load within {LOAD_TIMEOUT_S:g} s"
        except BadFrame as error:
            fault = f"the file broke its runner: {error}"
        else:
            match reply := None if found is None else found[0]:
                case {"type": "loaded"} if reply is not None:
                    return reply
                case {"type": "refused", "message": str(message), "line": int() | None as line}:
                    await self.stop()
                    where = f" (line {line})" if line else ""
                    raise WorkflowError(f"{message}{where}", "bad-file", line=line)
            fault = "the file ended its runner while it was loaded"
        status = await self.stop()
        raise WorkflowError(f"{fault} (status {status})", "bad-file")

    async def _start(self) -> Child:
        settings = (self.settings.runner_memory, MAX_STEPS)
        words = [sys.executable, "-I", "-c", _START, _REPOSITORY, *map(str, settings)]
        try:
            return await start(Command("runner", words, {}, folder=Path("/")), is_connected=True)
        except OSError as error:
            raise WorkflowError(f"no runner can be started: {error}", "runner-failed") from error

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
            self.on_exit(self)

    async def _receive(self) -> None:
        if self._child is None:
            return
        try:
            while (found := await self._child.receive()) is not None:
                message, self._unanswered = found[0], 0
                if message.get("type") != "pong":
                    self.on_message(message)
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

    def end(self) -> None:
        """Kill it; its runs are not resumed."""
        self.is_stopping = True
        self.kill()

    async def stop(self) -> int | None:
        """End the process; its exit status."""
        return None if self._child is None else await self._child.end(grace_s=0.0)


MAX_AGE_S: Final = 1.0
"""A definition is read again when it is older: another scheduler may have deployed a new one."""
MAX_KILLS: Final = 2
"""Ends of runners after which a file, or a run that was in each of them, is stopped."""
KILLS_FADE_S: Final = 300.0
"""Time after which ends of runners are forgotten, and a stopped file is tried again."""
MAX_SOURCE_BYTES: Final = 1 << 20
MAX_CHECKS: Final = 4
"""Files checked at once, each by a process; others wait."""
MAX_WAITING_CHECKS: Final = 16


def not_deployed(name: ModelName) -> str:
    return f"workflow {name} is not deployed; `pilotlight get workflows` lists those that are"


@dataclass(eq=False, slots=True)
class Deployment:
    """One workflow as this scheduler serves it."""

    name: ModelName
    definition: Mapping[str, Any]
    runner: RunnerProcess | None = None
    runs: dict[str, Run] = field(default_factory=dict)
    """Begun in its runner, by execution; what an earlier one of a run still sends is ignored."""
    read_s: float = field(default_factory=time.monotonic)
    kills: int = 0
    """How often its runner has ended with runs in it since a run succeeded."""
    killed_s: float = -math.inf
    """When its runner ended last, on the monotonic clock."""
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def sha(self) -> str:
        return str(self.definition["sha"])


@dataclass(eq=False)
class Deployments:
    """Owned by the event loop; runners' tasks belong to its task group."""

    settings: SchedulerSettings
    group: asyncio.TaskGroup
    log: WorkflowLog
    on_message: Callable[[Run, Mapping[str, Any]], None]
    on_stopped: Callable[[Run], None]
    on_resumed: Callable[[Run], None]

    def __post_init__(self) -> None:
        self._deployments: dict[ModelName, Deployment] = {}
        self._runners: set[RunnerProcess] = set()
        """Also those of older files, which end with their last run."""
        self._executions = count(1)
        self._checks = asyncio.Semaphore(MAX_CHECKS)
        self._checking_total = 0
        """Files that are checked or wait for it."""

    async def deploy(self, name: ModelName, source: str) -> tuple[str, Mapping[str, Any]]:
        """Check a file in a runner of its own and store it; the outcome and its definition.

        Raises WorkflowError, RegistryUnavailable.
        """
        if len(source.encode()) > MAX_SOURCE_BYTES:
            raise WorkflowError(
                f"a file may have {MAX_SOURCE_BYTES} bytes, has {len(source.encode())}", "bad-file"
            )
        loaded = await self._check(source)
        definition = {
            "kind": "python",
            "source": source,
            "sha": hashlib.sha256(source.encode()).hexdigest()[:16],
            **{key: loaded[key] for key in ("parameters", "deadline_s", "is_stream", "function")},
        }
        try:
            outcome = await self.log.put_workflow(name, definition)
        except InvalidModel as error:
            raise WorkflowError(str(error), "name-taken") from error
        self._replace(name, definition)
        return outcome, definition

    async def _check(self, source: str) -> dict[str, Any]:
        """What the file defines. Raises WorkflowError."""
        if self._checking_total >= MAX_CHECKS + MAX_WAITING_CHECKS:
            raise WorkflowError(
                f"{self._checking_total} files are being checked; try again", "too-many-files"
            )
        self._checking_total += 1
        try:
            async with self._checks:
                runner = RunnerProcess(self.settings, lambda _: None, lambda _: None)
                try:
                    return await runner.load({"source": source})
                finally:
                    await runner.stop()
        finally:
            self._checking_total -= 1

    async def delete(self, name: ModelName) -> bool:
        deployment = self._deployments.pop(name, None)
        if deployment is not None:
            self._retire(deployment)
        return await self.log.delete_workflow(name)

    async def find(self, name: ModelName) -> Deployment:
        """The workflow as it is deployed now. Raises WorkflowError."""
        known = self._deployments.get(name)
        if known is None or time.monotonic() - known.read_s > MAX_AGE_S:
            definition = await self.log.workflow(name)
            if definition is None:
                raise WorkflowError(not_deployed(name), "workflow-not-found")
            known = self._replace(name, definition)
            known.read_s = time.monotonic()
        self._check_kills(known)
        return known

    def _replace(self, name: ModelName, definition: Mapping[str, Any]) -> Deployment:
        known = self._deployments.get(name)
        if known is not None and known.sha == definition["sha"]:
            return known
        if known is not None:
            self._retire(known)
        found = self._deployments[name] = Deployment(name, definition)
        return found

    def _retire(self, deployment: Deployment) -> None:
        """A runner of an older file ends with its last run."""
        if deployment.runner is not None and not deployment.runs:
            deployment.runner.end()
            deployment.runner = None  # a run that has found the older file starts another

    # Runs

    async def start_run(self, deployment: Deployment, run: Run) -> None:
        """Execute a run's function in the workflow's runner. Raises WorkflowError."""
        run.host = deployment
        runner = await self._runner_of(deployment)
        if run.host is deployment:
            self._begin(deployment, runner, run)
        else:  # it ended meanwhile
            self._retire_replaced(deployment)

    def _begin(self, deployment: Deployment, runner: RunnerProcess, run: Run) -> None:
        run.execution = str(next(self._executions))
        deployment.runs[run.execution] = run
        run.called = run.yielded = 0
        run.printed = Printed()
        run.fetches.clear()
        run.iterated.clear()
        runner.send(
            {
                "type": "run",
                "run": run.execution,
                "seed": run.identity,
                "arguments": run.arguments,
                "begun_s": run.begun_s,
            }
        )

    async def _runner_of(self, deployment: Deployment) -> RunnerProcess:
        async with deployment.starting:
            if deployment.runner is None:
                deployment.runner = await self._start_runner(deployment)
            return deployment.runner

    async def _start_runner(self, deployment: Deployment) -> RunnerProcess:
        def on_message(message: dict[str, Any]) -> None:
            run = deployment.runs.get(str(message.get("run")))
            if run is not None:
                self.on_message(run, message)

        runner = RunnerProcess(self.settings, on_message, partial(self._on_exit, deployment))
        loaded = await runner.load(deployment.definition)
        logger.info(
            "runner started",
            extra={
                "workflow": str(deployment.name),
                "pid": runner.pid,
                "granted": loaded.get("granted"),
            },
        )
        self._runners.add(runner)
        self.group.create_task(runner.run())
        return runner

    def _on_exit(self, deployment: Deployment, runner: RunnerProcess) -> None:
        """Start another runner for the runs that were in it, unless the file kills its runners."""
        self._runners.discard(runner)
        if deployment.runner is runner:
            deployment.runner = None
        if not deployment.runs or runner.is_stopping:
            return
        self._forget_kills(deployment)
        deployment.kills += 1
        deployment.killed_s = time.monotonic()
        logger.warning(
            "runner ended",
            extra={
                "workflow": str(deployment.name),
                "runs": len(deployment.runs),
                "kills": deployment.kills,
            },
        )
        for run in list(deployment.runs.values()):
            run.kills += 1
            if max(run.kills, deployment.kills) >= MAX_KILLS:
                self.on_stopped(run)
        if deployment.runs:
            self.group.create_task(self._resume(deployment))

    async def _resume(self, deployment: Deployment) -> None:
        runs = list(deployment.runs.values())
        try:
            runner = await self._runner_of(deployment)
        except Exception:
            logger.exception("no runner for resumed runs")
            for run in runs:
                self.on_stopped(run)
            return
        for run in runs:
            if deployment.runs.pop(run.execution, None) is None:
                continue
            run.resumptions += 1
            run.deliveries.extendleft(reversed(run.delivered))
            run.delivered.clear()
            self.on_resumed(run)
            self._begin(deployment, runner, run)
        self._retire_replaced(deployment)

    def send(self, run: Run, message: Mapping[str, Any]) -> None:
        """Send to the runner that executes the run, if it is there. Raises BadFrame."""
        if isinstance(run.host, Deployment) and run.host.runner is not None:
            run.host.runner.send({**message, "run": run.execution})

    def forget(self, run: Run) -> None:
        deployment, run.host = run.host, None
        if not isinstance(deployment, Deployment):
            return
        deployment.runs.pop(run.execution, None)
        if run.status is RunStatus.SUCCEEDED:
            deployment.kills = 0
        self._retire_replaced(deployment)

    def _retire_replaced(self, deployment: Deployment) -> None:
        if deployment is not self._deployments.get(deployment.name):
            self._retire(deployment)

    @staticmethod
    def _forget_kills(deployment: Deployment) -> None:
        if time.monotonic() - deployment.killed_s > KILLS_FADE_S:
            deployment.kills = 0

    def _check_kills(self, deployment: Deployment) -> None:
        self._forget_kills(deployment)
        if deployment.kills >= MAX_KILLS:
            raise WorkflowError(
                f"workflow {deployment.name} was stopped: its file ended its runner "
                f"{deployment.kills} times; deploy a corrected file, or wait {KILLS_FADE_S:g} s",
                "workflow-stopped",
            )

    def stop(self) -> None:
        for runner in self._runners:
            runner.end()


_CHECKS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "text": lambda value: isinstance(value, str),
    "whole number": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "list": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def argument_problems(
    parameters: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]
) -> list[str]:
    """What is wrong with the arguments, one line each; empty: nothing."""
    known = {str(each["name"]): each for each in parameters}
    allowed = ", ".join(known) or "none"
    problems = [
        f"unknown argument {name!r}; the workflow takes: {allowed}"
        for name in arguments
        if name not in known
    ]
    for name, parameter in known.items():
        if name not in arguments:
            if parameter["required"]:
                problems.append(f"argument {name!r} ({parameter['type']}) is missing")
            continue
        check = _CHECKS.get(str(parameter["type"]))
        if check is not None and not check(arguments[name]):
            problems.append(
                f"argument {name!r} must be a {parameter['type']}, was {shown(arguments[name])}"
            )
    return problems
