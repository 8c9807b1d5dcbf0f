"""An event loop that says when it has nothing to do.

Replies are delivered then, one at a time: the order in which a run begins its steps depends on the
order of its replies alone, so that a resumed run begins the same ones.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from selectors import SelectorKey

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


def new_loop(selector: IdleSelector) -> asyncio.SelectorEventLoop:
    return asyncio.SelectorEventLoop(selector)
