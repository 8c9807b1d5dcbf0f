"""Child processes: started with a session of their own, ended with a grace, kept running.

A session of its own keeps the terminal's Ctrl-C from a child, so that its parent stops all parts in
order. The kernel kills a child when the thread that started it ends (`common.parent_death`).
"""

import asyncio
import errno
import logging
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any, Final

from common.backoff import Backoff, KeyedBackoff
from common.frames import MAX_BYTES, BadFrame, Message, frame, read_frame
from common.parent_death import dies_with_this_thread

logger = logging.getLogger(__name__)

RESTART: Final = Backoff(initial_s=0.25, max_s=30.0)
STABLE_S: Final = 30.0
"""The end of a process that ran so long counts as its first."""
NO_OUTPUT: Final = Path(os.devnull)
_REPOSITORY: Final = str(Path(__file__).resolve().parents[1])


def python_module(module: str) -> list[str]:
    """The command that runs a module; `-P` keeps the working directory off the import path."""
    return [sys.executable, "-P", "-m", module]


def python_environment(base: Mapping[str, str]) -> dict[str, str]:
    """An environment in which a child imports the same code as this process."""
    paths = [_REPOSITORY, *base.get("PYTHONPATH", "").split(os.pathsep)]
    return {**base, "PYTHONPATH": os.pathsep.join(dict.fromkeys(path for path in paths if path))}


@dataclass(frozen=True, slots=True)
class Command:
    """How a process is started."""

    name: str
    words: Sequence[str]
    env: Mapping[str, str]
    log_file: Path | None = None
    """For its output; None: this process's own."""
    folder: Path | None = None
    """Where it starts; None: where this process is."""


class Child:
    """A process that was started, and the connection to it if there is one."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None,
    ) -> None:
        self.pid = process.pid
        self._process = process
        self._streams = streams
        self._is_over = False
        """Its number may be another process's by now."""

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    def send_signal(self, number: int) -> None:
        """Raises ProcessLookupError if it has ended."""
        if not self.is_running:
            raise ProcessLookupError(errno.ESRCH, "the process has ended", self.pid)
        os.kill(self.pid, number)  # Popen's would poll, and so take the status from the loop

    def send(self, head: object, body: bytes = b"") -> None:
        """Send a message; it is lost if the child has ended. Raises BadFrame."""
        if self._streams is not None and not self._streams[1].is_closing():
            self._streams[1].write(frame(head, body))

    async def receive(self, *, max_bytes: int = MAX_BYTES) -> Message | None:
        """The next message; None if the child has closed its end. Raises BadFrame."""
        if self._streams is None:
            return None
        return await read_frame(self._streams[0], max_bytes=max_bytes)

    @property
    def unread_bytes(self) -> int:
        """What was sent and the child has not read yet."""
        return self._streams[1].transport.get_write_buffer_size() if self._streams else 0

    def close(self) -> None:
        """Close the connection after what was sent."""
        if self._streams is not None:
            self._streams[1].close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._streams is not None:
            self._streams[1].transport.abort()

    def kill(self) -> None:
        """Kill the child and all processes of its session."""
        if not self._is_over:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    async def wait(self) -> int:
        """Its exit status, negative for a signal; the rest of its session is killed."""
        status = await self._process.wait()
        self.kill()
        self._is_over = True
        return status

    async def end(self, *, grace_s: float, number: int = signal.SIGTERM) -> int:
        """Send a signal, kill the session after the grace; as `wait`."""
        if self.is_running and grace_s > 0:
            with suppress(ProcessLookupError):
                self.send_signal(number)
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._process.wait()
        self.abort()
        self.kill()
        return await self.wait()


async def start(command: Command, *, is_connected: bool = False) -> Child:
    """Start a process, with `is_connected` on a connection that is its standard input.

    To be called in a thread that outlives it, such as the main one. Raises OSError.
    """
    path = shutil.which(command.words[0], path=command.env.get("PATH"))
    if path is None:
        raise FileNotFoundError(errno.ENOENT, "there is no such program", command.words[0])
    output, standard_input, streams = None, asyncio.subprocess.DEVNULL, None
    with ExitStack() as stack:
        if command.log_file is not None:
            command.log_file.parent.mkdir(parents=True, exist_ok=True)
            output = os.open(command.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            stack.callback(os.close, output)
        if is_connected:
            ours, theirs = socket.socketpair()
            stack.enter_context(theirs)
            streams = await asyncio.open_unix_connection(sock=ours)
            standard_input = theirs.fileno()
        try:
            process = await asyncio.create_subprocess_exec(
                *dies_with_this_thread([path, *command.words[1:]]),
                stdin=standard_input,
                stdout=output,
                stderr=output,
                env=dict(command.env),
                cwd=command.folder,
                start_new_session=True,
            )
        except BaseException:
            if streams is not None:
                streams[1].transport.abort()
            raise
    return Child(process, streams)


@dataclass(eq=False)
class KeptProcess:
    """Keeps one process running while it is wanted, and restarts it after a growing pause.

    Callbacks are called on the loop.
    """

    command: Command
    on_message: Callable[[dict[str, Any], bytes], object] | None = None
    """Called with each message of the process; None: without a connection."""
    on_start: Callable[[], object] = lambda: None
    """Called when a process has been started."""
    on_end: Callable[[], object] = lambda: None
    """Called when one has ended, whatever the cause."""
    grace_s: float = 0.0
    """Time to end after a SIGTERM, when `run` is cancelled."""
    is_wanted: InitVar[bool] = True
    """At first."""

    def __post_init__(self, is_wanted: bool) -> None:
        self.child: Child | None = None
        """The running process."""
        self.deaths = 0
        self._backoff = KeyedBackoff(RESTART, fades_s=STABLE_S)
        self._stopping = asyncio.Event()
        self._wanted = asyncio.Event()
        self.want(is_wanted=is_wanted)

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        return None if self.child is None else self.child.pid

    def want(self, *, is_wanted: bool = True) -> None:
        """A process that is no longer wanted runs on, but is not started again."""
        if is_wanted:
            self._wanted.set()
        else:
            self._wanted.clear()

    def send(self, head: object, body: bytes = b"") -> None:
        """Send a message to the process, if it runs."""
        if self.child is not None:
            self.child.send(head, body)

    async def run(self) -> None:
        """Keep the process running until `stop`, or until cancelled, which ends it."""
        while not self._stopping.is_set():
            await self._wanted.wait()
            status: object
            try:
                status = await self._run_once()
            except OSError as error:  # no program, descriptor, process or memory: it may be later
                status = error
            if self._stopping.is_set():
                return
            self.deaths += 1
            pause_s = self._backoff.failed(self.command.name, time.monotonic())
            logger.warning(
                "process died; restarting it",
                extra={"process_name": self.command.name, "status": status, "delay_s": pause_s},
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()

    async def _run_once(self) -> int:
        child = await start(self.command, is_connected=self.on_message is not None)
        try:
            if self._stopping.is_set():  # `stop` was called during the start
                return await child.end(grace_s=0.0)
            self.child = child
            logger.info(
                "process started", extra={"process_name": self.command.name, "pid": child.pid}
            )
            self.on_start()
            if self.on_message is not None:
                await self._receive(child, self.on_message)
                if not self._stopping.is_set():
                    child.kill()
            return await child.wait()
        finally:
            self.child = None
            self.on_end()
            await asyncio.shield(child.end(grace_s=self.grace_s))

    async def _receive(
        self, child: Child, on_message: Callable[[dict[str, Any], bytes], object]
    ) -> None:
        try:
            while (found := await child.receive()) is not None:
                on_message(*found)
        except BadFrame as error:
            logger.warning(
                "process sent a bad message",
                extra={"process_name": self.command.name, "error": str(error)},
            )

    def announce_stop(self) -> None:
        """Tell the process by a first SIGTERM that `stop` comes; it is not restarted any more."""
        self._stopping.set()
        if self.child is not None and self.child.is_running:
            with suppress(ProcessLookupError):
                self.child.send_signal(signal.SIGTERM)

    async def stop(self, *, grace_s: float) -> None:
        """End the process for good: with SIGTERM, and after the grace period with SIGKILL."""
        self._stopping.set()
        self._wanted.set()
        if self.child is not None:
            self.child.close()
            await self.child.end(grace_s=grace_s)
