"""A process that imports libraries once, then forks a child per command, over its parent's socket.

Heads of messages from there are {"spawn": {fields}} and {"stop": NAME, "grace_s": 10}. Events sent
are {"ready": true, …}, {"spawned": NAME, "pid": N}, {"exited": NAME, "pid": N, "status": CODE or
-SIGNAL}, {"error": TEXT}. End of input stops all children.

It stays single-threaded and runs no torch operation, event loop, client or metric, since a child
would inherit them in an unusable state. It imports, freezes the heap and forks. An engine's
environment has nothing of ours but `common`: this imports what is there.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from common.frames import frame, received
from common.parent_death import die_with

DEFAULT_GRACE_S = 30.0
POLL_INTERVAL_S = 0.05
_HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class ChildProgram:
    """What a child runs."""

    name: str
    run: Callable[[], int]
    """Returns its exit status."""
    log_file: str = ""
    """For its output; empty: standard error stays, the rest goes nowhere."""
    has_session: bool = False
    """Whether it starts processes of its own, which end with it."""


@dataclass(slots=True)
class _Child:
    """A child process. `kill_at_s` is set once it has received SIGTERM."""

    name: str
    pid: int
    has_session: bool
    kill_at_s: float | None = None

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
            if self.has_session:
                os.killpg(self.pid, signal.SIGKILL)


class Forkserver:
    """The parent of the children."""

    def __init__(
        self,
        connection: socket.socket,
        read: Callable[[dict[str, Any]], ChildProgram],
        *,
        grace_s: float = DEFAULT_GRACE_S,
    ) -> None:
        """`read`: a child from the fields of `spawn`; raises ValueError, TypeError, KeyError.

        `grace_s`: of all children at the end of the input.
        """
        self._grace_s = grace_s
        self._connection = connection
        self._read = read
        self._commands = received(connection)
        self._children: dict[str, _Child] = {}
        self._is_closing = False

    def run(self, **facts: object) -> int:
        """Execute commands until the input has ended and every child has exited.

        `facts`: sent with `ready`.
        """
        wakeup_read, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._close)
        self._emit({"ready": True, **facts})
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            selector.register(wakeup_read, selectors.EVENT_READ)
            while not self._is_closing or self._children:
                for key, _ in selector.select(POLL_INTERVAL_S if self._is_stopping() else None):
                    if key.fd == wakeup_read:
                        os.read(wakeup_read, 4096)
                    elif (command := next(self._commands, None)) is not None:
                        self._execute(command[0])
                    else:
                        selector.unregister(self._connection)
                        self._close()
                self._reap()
                self._kill_overdue()
        return 0

    def _is_stopping(self) -> bool:
        return any(child.kill_at_s is not None for child in self._children.values())

    def _close(self, *_: object) -> None:
        self._is_closing = True
        for name in list(self._children):
            self._stop(name, self._grace_s)

    def _execute(self, command: dict[str, Any]) -> None:
        try:
            if "spawn" in command:
                self._spawn(self._read(command["spawn"]))
            elif "stop" in command:
                self._stop(str(command["stop"]), float(command.get("grace_s", DEFAULT_GRACE_S)))
            else:
                raise ValueError("a command must have 'spawn' or 'stop'")
        except (ValueError, TypeError, KeyError, OSError) as error:  # OSError: cannot fork
            self._emit({"error": str(error)})  # the command may hold a password

    def _spawn(self, program: ChildProgram) -> None:
        if program.name in self._children:
            raise ValueError(f"{program.name} already runs")
        parent = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)  # here they would stop all children
        try:
            pid = os.fork()
            if pid == 0:
                _run_child(program, parent)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        self._children[program.name] = _Child(program.name, pid, program.has_session)
        self._emit({"spawned": program.name, "pid": pid})

    def _stop(self, name: str, grace_s: float) -> None:
        child = self._children.get(name)
        if child is None:
            raise ValueError(f"no child {name} runs")
        if child.kill_at_s is None:
            os.kill(child.pid, signal.SIGTERM)
        child.kill_at_s = time.monotonic() + grace_s

    def _reap(self) -> None:
        for child in list(self._children.values()):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                if child.has_session:
                    with suppress(ProcessLookupError):
                        os.killpg(child.pid, signal.SIGKILL)  # what it has left
                del self._children[child.name]
                code = os.waitstatus_to_exitcode(status)
                self._emit({"exited": child.name, "pid": pid, "status": code})

    def _kill_overdue(self) -> None:
        now_s = time.monotonic()
        for child in self._children.values():
            if child.kill_at_s is not None and now_s >= child.kill_at_s:
                child.kill()

    def _emit(self, event: dict[str, Any]) -> None:
        with suppress(OSError):  # the parent has ended, and so does the input
            self._connection.sendall(frame(event))


def _run_child(program: ChildProgram, parent: int) -> NoReturn:
    """Run a child; never returns into the parent's code."""
    status = 1
    try:
        die_with(parent)
        if program.has_session:
            os.setsid()
        signal.set_wakeup_fd(-1)
        for number in _HANDLED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        _redirect(program.log_file)
        status = program.run()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _redirect(log_file: str) -> None:
    """Replace the parent's descriptors, one of which is the connection for its commands."""
    null = os.open(os.devnull, os.O_RDWR)
    log = null
    if log_file:
        log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(log, 1)
    if log_file:
        os.dup2(log, 2)
    os.closerange(3, 1024)


def freeze_after(import_all: Callable[[], object]) -> None:
    """Import, without collections of the growing heap, which would take a fifth of the time."""
    gc.disable()
    import_all()
    gc.enable()
    gc.collect()
    gc.freeze()
