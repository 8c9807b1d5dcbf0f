"""Runs a platform until a signal ends it: in the foreground, or detached as a process of its own.

The detached process (`python -m pilotlight.platform.supervisor`) reads its settings from standard
input, since they may hold a password. It writes JSON lines on standard output until it is ready:
{"done", "total", "text"}, then {"ready": state}, or {"error", "status"}.
"""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

from common.child_process import python_environment, python_module
from common.process import configure_logs, set_process_title
from pilotlight.errors import (
    AlreadyRunning,
    Interrupted,
    PilotlightError,
    RequestFailed,
    StartFailed,
    cancelled_by_signals,
)
from pilotlight.platform.platform import Platform
from pilotlight.platform.settings import PlatformSettings
from pilotlight.state_dir import PlatformState, StateDir

_STOP_TIMEOUT_S = 60.0


async def supervise(
    settings: PlatformSettings,
    *,
    on_progress: Callable[[int, int, str], None],
    on_ready: Callable[[Platform], Awaitable[None]],
) -> None:
    """Run a platform until a signal ends it; raises Interrupted if it was not ready by then."""
    is_ready = False
    try:
        async with cancelled_by_signals(), Platform(settings, on_progress) as platform:
            await on_ready(platform)
            is_ready = True
            await asyncio.Event().wait()
    except Interrupted:
        if not is_ready:
            raise


def start_detached(
    settings: PlatformSettings, on_progress: Callable[[int, int, str], None]
) -> PlatformState:
    """Start a platform as a process of its own; returns when it is ready, or raises StartFailed."""
    from pydantic import TypeAdapter  # takes 0.1 s, and other verbs do not need it

    settings_as_json = TypeAdapter(PlatformSettings).dump_json(settings)
    error_log = settings.state_dir.logs / "supervisor.err"
    settings.state_dir.make_private()
    with open(error_log, "wb", opener=partial(os.open, mode=0o600)) as errors:
        supervisor = subprocess.Popen(
            python_module("pilotlight.platform.supervisor"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=python_environment(os.environ),
            start_new_session=True,
        )
    try:
        with suppress(BrokenPipeError), supervisor.stdin or nullcontext() as stream:
            if stream is not None:
                stream.write(settings_as_json)
        state = _read_until_ready(supervisor, on_progress)
    except BaseException:
        supervisor.terminate()
        raise
    finally:
        if supervisor.stdout is not None:
            supervisor.stdout.close()
    if state is None:
        status = supervisor.wait()
        tail = error_log.read_text()[-1000:]
        raise StartFailed(f"the supervisor ended with status {status}: {tail}")
    return state


def _read_until_ready(
    supervisor: subprocess.Popen[bytes], on_progress: Callable[[int, int, str], None]
) -> PlatformState | None:
    """The state of the ready platform; None if the supervisor's output ends without one."""
    for line in supervisor.stdout or ():
        match json.loads(line):
            case {"ready": dict(state)}:
                supervisor.returncode = 0  # it runs on: without a status Popen warns at its end
                return PlatformState.from_fields(state)
            case {"error": str(text), "status": int(status)}:
                supervisor.wait()
                raise AlreadyRunning(text) if status == 2 else StartFailed(text)
            case {"done": int(done), "total": int(total), "text": str(text)}:
                on_progress(done, total, text)
    return None


def stop_platform(state_dir: StateDir) -> int | None:
    """Stop the platform of a state directory and wait for its end; its pid, or None without one."""
    state = state_dir.read_state()
    if state is None:
        return None
    deadline_s = time.monotonic() + _STOP_TIMEOUT_S
    while state is not None and state.pid == 0 and time.monotonic() < deadline_s:
        time.sleep(0.02)  # the lock is taken and the state not yet written
        state = state_dir.read_state()
    pid = state.pid if state else 0
    if pid:
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
        except PermissionError as error:
            raise RequestFailed(f"pid {pid} belongs to another user") from error
    while state_dir.is_locked() or (pid and _is_running(pid)):
        if time.monotonic() > deadline_s:
            raise RequestFailed(
                f"the platform (pid {pid or '?'}) did not stop within {_STOP_TIMEOUT_S:g} s; "
                f"its log is {state_dir.logs / 'supervisor.log'}"
            )
        time.sleep(0.05)
    return pid


def _is_running(pid: int) -> bool:
    """Its lock is free shortly before it ends. A child of this process that has ended is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def log_to_file(settings: PlatformSettings) -> None:
    """Write this process's log lines to the state directory.

    From here on all files of this process and its children are this user's alone.
    """
    os.umask(0o077)
    settings.state_dir.make_private()
    handler = logging.FileHandler(settings.state_dir.logs / "supervisor.log")
    configure_logs(handler, "INFO")


def main() -> int:
    from pydantic import TypeAdapter

    set_process_title("supervisor")
    settings = TypeAdapter(PlatformSettings).validate_json(sys.stdin.buffer.read())
    log_to_file(settings)
    is_starter_reading = True

    def write(message: dict[str, object]) -> None:
        nonlocal is_starter_reading
        if is_starter_reading:
            try:
                print(json.dumps(message), flush=True)  # noqa: T201 - the protocol above
            except BrokenPipeError:
                is_starter_reading = False

    def write_progress(done: int, total: int, text: str) -> None:
        write({"done": done, "total": total, "text": text})

    async def on_ready(platform: Platform) -> None:
        nonlocal is_starter_reading
        write({"ready": asdict(platform.state)})
        is_starter_reading = False
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())  # closes the pipe, so that the starter reads its end
        os.close(null)

    try:
        asyncio.run(supervise(settings, on_progress=write_progress, on_ready=on_ready))
    except PilotlightError as error:
        logging.getLogger(__name__).error("the platform ended", extra={"error": error})
        write({"error": str(error), "status": 2 if isinstance(error, AlreadyRunning) else 1})
        return 1
    finally:
        with suppress(OSError):
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
