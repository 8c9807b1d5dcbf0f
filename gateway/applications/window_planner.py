"""Plans windows beside the event loop, so that no other request waits for a plan.

A window of one request is planned at once: that takes less than the way to the process. So is one
while the process does not run or does not answer; no request is lost. The process is this module,
`python -m gateway.applications.window_planner` with a gateway's socket as its input, and ends when
the gateway closes it. Bodies are pickled: both ends are the same program, and nobody else has the
socket.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from common.frames import frame, parent_socket, received
from gateway.selection.selection_policies import plan_window
from gateway.selection.window import SelectionPlan, Window
from gateway.sneakpeek.client import kept_module

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 0.5
"""A plan of the largest window takes a tenth of it."""


class WindowPlanner:
    """One planning process, which `run` keeps alive once a window wanted it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._pending: dict[int, _PendingPlan] = {}
        self.process = kept_module(
            "gateway.applications.window_planner", self._on_message,
            on_start=lambda: None, on_end=self._plan_here,
        )  # fmt: skip
        self.run = self.process.run

    def plan(
        self, policy: str, window: Window,
        then: Callable[[SelectionPlan | None], object],
    ) -> None:  # fmt: skip
        """Call `then` with the plan, now or later; None: no pod can run a variant."""
        pending = _PendingPlan(policy, window, then)
        if len(window.requests) > 1:
            self.process.want()
        if len(window.requests) == 1 or self.process.child is None:
            pending.plan_here()
            return
        self._number += 1
        self._pending[self._number] = pending
        pending.timer = self._loop.call_later(TIMEOUT_S, self._time_out)
        self.process.send({"number": self._number}, pickle.dumps((policy, window)))

    def _time_out(self) -> None:
        logger.warning("planning process does not answer")
        if self.process.child is not None:
            self.process.child.abort()
        self._plan_here()

    def _plan_here(self) -> None:
        """What the process will not plan."""
        waiting = list(self._pending.values())
        self._pending.clear()
        for each in waiting:
            each.plan_here()

    def _on_message(self, head: dict[str, Any], body: bytes) -> None:
        pending = self._pending.pop(head["number"], None)
        if pending is not None:
            pending.end(pickle.loads(body))


class _PendingPlan:
    def __init__(
        self, policy: str, window: Window,
        then: Callable[[SelectionPlan | None], object],
    ) -> None:  # fmt: skip
        self._policy = policy
        self._window = window
        self._then = then
        self.timer: asyncio.TimerHandle | None = None

    def plan_here(self) -> None:
        self.end(plan_or_none(self._policy, self._window))

    def end(self, plan: SelectionPlan | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self._then(plan)


def plan_or_none(policy: str, window: Window) -> SelectionPlan | None:
    """None: no worker can run a variant of some application, or a policy failed.

    Requests are then routed without a plan: a mistake of ours must not hold up later windows.
    """
    try:
        return plan_window(policy, window)
    except ValueError:
        return None
    except Exception:
        logger.exception("a window cannot be planned", extra={"policy": str(policy)})
        return None


def main() -> None:
    with parent_socket() as connection, suppress(ConnectionError):
        for head, body in received(connection):
            connection.sendall(frame(head, pickle.dumps(plan_or_none(*pickle.loads(body)))))


if __name__ == "__main__":
    main()
