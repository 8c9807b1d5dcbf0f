"""Handling of SIGINT (Ctrl-C) and SIGTERM in synchronous commands, and of SIGHUP too in tasks."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Final

from pilotlight.errors import Interrupted

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_first_signal(handle: Callable[[int], None]) -> Iterator[None]:
    """Calls `handle` with the number of the first signal; a second one has its previous effect."""
    before = {each: signal.getsignal(each) for each in _SIGNALS}

    def restore() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    def on_signal(number: int, _: FrameType | None) -> None:
        restore()
        handle(number)

    for each in _SIGNALS:
        signal.signal(each, on_signal)
    try:
        yield
    finally:
        restore()


@asynccontextmanager
async def cancelled_by_signals() -> AsyncIterator[None]:
    """Cancels the body at the first SIGINT, SIGTERM or SIGHUP, and ignores later ones.

    Raises:
        Interrupted: after the body has cleaned up.
    """
    body = asyncio.current_task()
    received: list[int] = []

    def on_signal(number: int) -> None:
        received.append(number)
        if body is not None and len(received) == 1:
            body.cancel()

    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (*_SIGNALS, signal.SIGHUP)}
    for number in before:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    except asyncio.CancelledError:
        if not received or body is None:
            raise
        body.uncancel()
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
    if received:
        raise Interrupted(received[0])
