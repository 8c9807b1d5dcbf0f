"""Calls in the future, in real or virtual time."""

from collections.abc import Callable
from typing import Any, Protocol


class Timer(Protocol):
    """A call in the future."""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """Real or virtual time."""

    def after(self, delay_s: float, do: Callable[[Any], object], argument: Any, /) -> Timer | None:
        """Call `do(argument)` after a delay; a delay of 0: once the current callbacks are over.

        Returns None if the call cannot be cancelled.
        """
