"""Run one workflow's file: `python -I -m workflows.runner FD PARENT MEMORY_BYTES MAX_STEPS`.

Started by the scheduler, with one end of a socket pair as its only connection and no environment.
The event loop says when it has nothing to do. Replies are delivered then, one at a time: the order
in which a run begins its steps depends on the order of its replies alone, so that a resumed run
begins the same ones.
"""

import asyncio
import contextlib
import ctypes
import io
import os
import resource
import selectors
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from selectors import SelectorKey
from types import FrameType
from typing import Any, Final

from common.confinement import (
    ConfinementMissing,
    filter_calls,
    keep_only,
    limit_resources,
    restrict_files,
)
from common.frames import frame, parent_socket, read_frame
from registry.domain.graph import nodes_of
from workflows.runner.execution import (
    FILENAME,
    BadDefinitionError,
    ExecutingRun,
    RunStuck,
    Workflow,
    current_run,
    line_of,
)
from workflows.runner.graph import graph_workflow

_CLONE_NEWNET, _CLONE_NEWUSER = 0x40000000, 0x10000000

_LIMITS: Final = {resource.RLIMIT_FSIZE: 0, resource.RLIMIT_NOFILE: 32, resource.RLIMIT_NPROC: 16}

_libc = ctypes.CDLL(None, use_errno=True)


def confine(memory_bytes: int) -> list[str]:
    """Limit this process's memory, files, processes and network; returns what the kernel granted.

    Resource limits always hold. A user namespace without network, Landlock and a filter of system
    calls are used where the kernel grants them. `memory_bytes`: beyond what the process has.
    """
    limit_resources(memory_bytes, _LIMITS)
    granted = []
    if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) == 0:
        granted.append("network-namespace")
    with contextlib.suppress(ConfinementMissing):
        filter_calls()
        granted.append("seccomp")
    with contextlib.suppress(ConfinementMissing):
        restrict_files(_readable_folders(), [])
        granted.append("landlock")
    return granted


def _readable_folders() -> list[Path]:
    own = Path(__file__).resolve().parent.parent
    found = {Path(sys.prefix), Path(sys.base_prefix) / "lib", own, own.parent / "pilotlight"}
    found |= {Path(each) for each in ("/lib", "/lib64", "/usr/lib", "/usr/share/zoneinfo")}
    found |= {Path(each) for each in ("/dev/null", "/dev/urandom", "/etc/localtime")}
    return sorted(folder for folder in found if folder.exists())


MAX_BUSY_ROUNDS: Final = 256
"""Rounds of the loop without a pause after which replies are delivered all the same: a run that
never waits must not hold up other runs."""


class IdleSelector(selectors.DefaultSelector):
    """Calls `on_idle` before the loop would sleep; if that returns true, it does not sleep.

    Its argument is true where no timer would wake the loop either.
    """

    on_idle: Callable[[bool], bool] = staticmethod(lambda _: False)
    on_event: Callable[[], None] = staticmethod(lambda: None)
    """Called when the loop sleeps; what happens then is not a run's doing."""
    _busy_rounds = 0

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        is_idle = timeout is None or timeout > 0
        self._busy_rounds = 0 if is_idle else self._busy_rounds + 1
        if is_idle:
            self.on_event()
        if (is_idle or self._busy_rounds % MAX_BUSY_ROUNDS == 0) and self.on_idle(timeout is None):
            timeout = 0
        return super().select(timeout)


SAMPLE_S: Final = 0.05
MAX_BUSY_S: Final = 2.0
"""A run that keeps the loop busy for longer, without waiting for a step, is ended."""
_STUCK: Final = f"the run kept its runner busy for {MAX_BUSY_S:g} s without waiting for a step"
MAX_INTERRUPTIONS: Final = 3


class RunOutput(io.TextIOBase):
    """Stands for standard output and standard error of a runner."""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        run = current_run.get()
        if run is not None:
            run.print(str(text))
        return len(text)


class Runner:
    """All runs of one file. Owned by the event loop."""

    def __init__(self, selector: IdleSelector, max_steps: int) -> None:
        self._runs: dict[str, ExecutingRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._replies: deque[dict[str, Any]] = deque()
        self._workflow: Workflow | None = None
        self._max_steps = max_steps
        self._writer: asyncio.StreamWriter | None = None
        selector.on_idle = self._on_idle
        selector.on_event = self._on_sleep

    async def serve(self, connection: socket.socket, granted: list[str]) -> None:
        reader, self._writer = await asyncio.open_unix_connection(sock=connection)
        while (found := await read_frame(reader)) is not None:
            match message := found[0]:
                case {"type": "load", "source": str(source)}:
                    self._send(self._load(source) | {"granted": granted})
                case {"type": "load-graph", "graph": dict(graph), "deadline_s": deadline_s}:
                    self._workflow = graph_workflow(nodes_of(graph), deadline_s)
                    self._send({"type": "loaded", "granted": granted})
                case {"type": "ping"}:
                    self._send({"type": "pong"})
                case {"type": "run"}:
                    self._start(message)
                case _:
                    self._replies.append(message)
            await self._writer.drain()
        self._writer.close()
        await self._writer.wait_closed()

    def _load(self, source: str) -> dict[str, Any]:
        try:
            names: dict[str, Any] = {"__name__": "workflow"}
            exec(compile(source, FILENAME, "exec", dont_inherit=True), names)
            found = {name: each for name, each in names.items() if isinstance(each, Workflow)}
            if len(found) != 1:
                raise BadDefinitionError(
                    "a file defines one function with @workflow, this one has "
                    f"{len(found)}: {', '.join(found) or 'none'}"
                )
            [self._workflow] = found.values()
            parameters = self._workflow.parameters()
        except SyntaxError as error:
            return _refused(f"SyntaxError: {error.msg}", error.lineno)
        except BadDefinitionError as error:
            return _refused(str(error), None)
        except BaseException as error:  # whatever a user's file raises
            return _refused(f"{type(error).__name__}: {error}", line_of(error))
        return {
            "type": "loaded",
            "parameters": parameters,
            "deadline_s": self._workflow.deadline_s,
            "is_stream": self._workflow.is_stream,
            "function": self._workflow.function.__name__,
        }

    def _start(self, message: dict[str, Any]) -> None:
        if self._workflow is None:
            raise RuntimeError("a run before the file was loaded")
        run = ExecutingRun(
            message["run"],
            message["seed"],
            float(message["begun_s"]),
            self._write,
            max_steps=self._max_steps,
        )
        self._runs[run.execution] = run
        task = run.start(self._workflow, message["arguments"])
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self._runs.pop(run.execution, None)
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error  # of this module: what the user's code raises has been sent

        task.add_done_callback(ended)

    def _send(self, message: dict[str, Any]) -> None:
        self._write(frame(message))

    def _write(self, data: bytes) -> None:
        if self._writer is not None:
            self._writer.write(data)

    # What happens while no run does anything

    def _on_sleep(self) -> None:
        for run in self._runs.values():
            run.busy_s = 0.0

    def _on_idle(self, is_forever: bool) -> bool:
        """Deliver one reply, else end runs that can never go on; False: sleep."""
        if self._replies:
            self._deliver(self._replies.popleft())
            return True
        if not is_forever:
            return False
        stuck = [run for run in self._runs.values() if run.has_begun and not run.waits_for_steps]
        for run in stuck:
            run.end_deadlock()
            self._forget_left(run)
        return bool(stuck)

    def _deliver(self, message: dict[str, Any]) -> None:
        run = self._runs.get(str(message.get("run")))
        if run is None:
            return
        match message:
            case {"type": "outputs", "step": int(step), "outputs": dict(outputs)}:
                run.deliver(step, outputs)
            case {"type": "failure", "step": int(step), "error": dict(error)}:
                run.deliver_failure(step, error)
            case {"type": "text", "step": int(step), "text": str(text)}:
                run.deliver_text(step, text)
            case {"type": "text-end", "step": int(step)}:
                run.deliver_text(step, None)
            case {"type": "cancel"}:
                run.cancel()
                self._forget_left(run)

    def _forget_left(self, run: ExecutingRun) -> None:
        """Let go of tasks that wait for each other; the interpreter collects them."""
        if run.is_left:
            self._runs.pop(run.execution, None)
            self._tasks = {each for each in self._tasks if each is not run.task}

    def sample(self, _number: int, _frame: FrameType | None) -> None:
        """Called periodically, also inside of a run's code, which it interrupts if it is stuck."""
        run = current_run.get()
        if run is None:
            return
        run.busy_s += SAMPLE_S
        if run.busy_s > MAX_BUSY_S * (run.interruptions + 1):
            run.interruptions += 1
            if run.interruptions > MAX_INTERRUPTIONS:
                os._exit(3)  # it catches every exception: its runner ends
            raise RunStuck(_STUCK)


def _refused(message: str, line: int | None) -> dict[str, Any]:
    return {"type": "refused", "message": message[:1000], "line": line}


def main() -> None:
    memory_bytes, max_steps = map(int, sys.argv[1:3])
    os.environ.clear()
    connection = parent_socket()
    keep_only(connection.fileno())
    selector = IdleSelector()
    loop = asyncio.SelectorEventLoop(selector)
    granted = confine(memory_bytes)
    runner = Runner(selector, max_steps)
    sys.stdout = sys.stderr = RunOutput()
    signal.signal(signal.SIGALRM, runner.sample)
    signal.setitimer(signal.ITIMER_REAL, SAMPLE_S, SAMPLE_S)
    with contextlib.suppress(ConnectionError):
        loop.run_until_complete(runner.serve(connection, granted))
    os._exit(0)


if __name__ == "__main__":
    main()
