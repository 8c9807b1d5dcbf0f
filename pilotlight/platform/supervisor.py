"""Runs a platform until it is told to stop: in the foreground, or as the process of `--detach`.

As a process (`python -m pilotlight.platform.supervisor SETTINGS`) it says JSON lines on standard
output until it is ready: {"done", "total", "text"}, then {"ready": state} or {"error", "status"}.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from pilotlight.errors import AlreadyRunning, Interrupted, PilotlightError
from pilotlight.platform.platform import Platform, StartProgress
from pilotlight.platform.settings import PlatformSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@asynccontextmanager
async def ended_by_signals() -> AsyncIterator[None]:
    """Cancel the body at the first SIGINT, SIGTERM or SIGHUP; later ones change nothing.

    Raises:
        Interrupted: after the body has cleaned up.
    """
    body = asyncio.current_task()
    told: list[int] = []

    def stop(number: int) -> None:
        told.append(number)
        if body is not None and len(told) == 1:
            body.cancel()

    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    except asyncio.CancelledError:
        if not told or body is None:
            raise
        body.uncancel()
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
    if told:
        raise Interrupted(told[0])


async def supervise(
    settings: PlatformSettings,
    *,
    on_progress: Callable[[StartProgress], None],
    on_ready: Callable[[Platform], Awaitable[None]],
) -> None:
    """Run a platform until a signal ends it; then return, or raise Interrupted if not ready."""
    is_ready = False
    try:
        async with ended_by_signals(), Platform(settings, on_progress) as platform:
            await on_ready(platform)
            is_ready = True
            await asyncio.Event().wait()
    except Interrupted:
        if not is_ready:
            raise


def log_to(settings: PlatformSettings) -> None:
    """Write this process's log lines to the home folder."""
    settings.home.logs.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(settings.home.logs / "supervisor.log")
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for noisy in ("httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class _Formatter(logging.Formatter):
    """Appends the variables of a line as `name=value`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = [f"{key}={value}" for key, value in vars(record).items() if key not in _PLAIN]
        return " ".join([super().format(record), *fields])


def main() -> int:
    """The process of a detached platform."""
    settings = PlatformSettings.from_json(sys.argv[1])
    log_to(settings)
    listening = True

    def say(message: dict[str, object]) -> None:
        nonlocal listening
        if listening:
            try:
                print(json.dumps(message), flush=True)  # noqa: T201 - the protocol above
            except BrokenPipeError:
                listening = False

    async def on_ready(platform: Platform) -> None:
        nonlocal listening
        say({"ready": asdict(platform.state)})
        listening = False
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, sys.stdout.fileno())  # lets the one who started us see the end
        os.close(quiet)

    try:
        asyncio.run(
            supervise(settings, on_progress=lambda step: say(asdict(step)), on_ready=on_ready)
        )
    except PilotlightError as error:
        logging.getLogger(__name__).error("the platform ended", exc_info=error)
        say({"error": str(error), "status": 2 if isinstance(error, AlreadyRunning) else 1})
        return 1
    finally:
        with suppress(OSError):
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
