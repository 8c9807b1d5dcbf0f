"""The forkserver starts pods fast: it imports all libraries once, then forks a pod per command.

Standard input is its parent's socket. Heads of messages from there are {"spawn": {settings}} and
{"stop": NAME, "grace_s": 10}. Events sent are {"ready": true}, {"spawned": NAME, "pid": N},
{"exited": NAME, "pid": N, "status": CODE or -SIGNAL}, {"error": TEXT}. End of input stops all pods.

The parent stays single-threaded and runs no torch operation, event loop, client or metric, since a
child would inherit them in an unusable state. It imports, freezes the heap and forks.
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
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from common.frames import frame, parent_socket, received
from common.parent_death import die_with
from common.process import set_process_title
from common.settings_table import settings_from_fields
from runtime.pod_process import bind_to_share, import_everything
from runtime.settings import RuntimeSettings

DEFAULT_GRACE_S = 30.0
POLL_INTERVAL_S = 0.05
_HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


@dataclass(slots=True)
class _Child:
    """A pod process. `kill_at_s` is set once it has received SIGTERM."""

    name: str
    pid: int
    kill_at_s: float | None = None


class Forkserver:
    """The parent of the pods."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._commands = received(connection)
        self._children: dict[str, _Child] = {}
        self._is_closing = False

    def run(self) -> int:
        """Execute commands until the input has ended and every child has exited."""
        wakeup_read, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._close)
        self._emit({"ready": True})
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
            self._stop(name, DEFAULT_GRACE_S)

    def _execute(self, command: dict[str, Any]) -> None:
        try:
            if "spawn" in command:
                self._spawn(settings_from_fields(RuntimeSettings, command["spawn"]))
            elif "stop" in command:
                self._stop(str(command["stop"]), float(command.get("grace_s", DEFAULT_GRACE_S)))
            else:
                raise ValueError("a command must have 'spawn' or 'stop'")
        except (ValueError, TypeError, KeyError, OSError) as error:  # OSError: cannot fork
            self._emit({"error": str(error)})  # the command may hold a password

    def _spawn(self, settings: RuntimeSettings) -> None:
        if settings.name in self._children:
            raise ValueError(f"pod {settings.name} already runs")
        parent = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)  # here they would stop all pods
        try:
            pid = os.fork()
            if pid == 0:
                _run_pod_process(settings, parent)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        self._children[settings.name] = _Child(settings.name, pid)
        self._emit({"spawned": settings.name, "pid": pid})

    def _stop(self, name: str, grace_s: float) -> None:
        child = self._children.get(name)
        if child is None:
            raise ValueError(f"no pod {name} runs")
        if child.kill_at_s is None:
            os.kill(child.pid, signal.SIGTERM)
        child.kill_at_s = time.monotonic() + grace_s

    def _reap(self) -> None:
        for child in list(self._children.values()):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                del self._children[child.name]
                code = os.waitstatus_to_exitcode(status)
                self._emit({"exited": child.name, "pid": pid, "status": code})

    def _kill_overdue(self) -> None:
        now_s = time.monotonic()
        for child in self._children.values():
            if child.kill_at_s is not None and now_s >= child.kill_at_s:
                os.kill(child.pid, signal.SIGKILL)

    def _emit(self, event: dict[str, Any]) -> None:
        with suppress(OSError):  # the parent has ended, and so does the input
            self._connection.sendall(frame(event))


def _run_pod_process(settings: RuntimeSettings, parent: int) -> NoReturn:
    """Run a pod in the child; never returns into the parent's code."""
    status = 1
    try:
        die_with(parent)
        set_process_title(settings.name)
        signal.set_wakeup_fd(-1)
        for number in _HANDLED:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        _redirect(settings)
        bind_to_share(gpu=settings.gpu, cores=settings.cores, share_pct=settings.share)
        from runtime.pod.lifecycle import run_pod

        status = run_pod(settings)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _redirect(settings: RuntimeSettings) -> None:
    """Replace the parent's descriptors, one of which is the connection for its commands."""
    null = os.open(os.devnull, os.O_RDWR)
    log = null
    if settings.log_file:
        log = os.open(settings.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(log, 1)
    if settings.log_file:
        os.dup2(log, 2)
    os.closerange(3, 1024)


def main() -> int:
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    connection = parent_socket()
    sys.argv = sys.argv[:1]  # kserve reads the command line when it is imported
    set_process_title("forkserver")
    gc.disable()  # collections of the growing heap would take a fifth of the time
    import_everything()
    gc.enable()
    gc.collect()
    gc.freeze()
    return Forkserver(connection).run()


if __name__ == "__main__":
    sys.exit(main())
