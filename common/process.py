"""A process among others: what `ps` and `top` show of it, and the signals that end it."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from setproctitle import getproctitle, setproctitle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def set_process_title(name: str) -> None:
    """`pilotlight: NAME` in place of the command line."""
    os.environ["SPT_NOENV"] = "1"  # else the title takes the place of /proc/PID/environ
    setproctitle(f"pilotlight: {name}")


def extend_process_title(part: str) -> None:
    """Of a forked process, which is a part of the one whose title it has."""
    setproctitle(f"{getproctitle()} {part}")


@contextmanager
def on_stop_signals(stop: Callable[[int], object]) -> Iterator[None]:
    """Call `stop` in the running loop with the number of each SIGINT and SIGTERM."""
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)
