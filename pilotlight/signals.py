"""Ctrl-C and SIGTERM for commands that work without an event loop."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_signal(handle: Callable[[int], None]) -> Iterator[None]:
    """Call `handle` with the number of the first signal; the second ends the process as ever."""
    before = {each: signal.getsignal(each) for each in _SIGNALS}

    def restore() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    def heard(number: int, _: FrameType | None) -> None:
        restore()
        handle(number)

    for each in _SIGNALS:
        signal.signal(each, heard)
    try:
        yield
    finally:
        restore()
