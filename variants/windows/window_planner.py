"""Plans windows beside the event loop, so that no other request waits for a plan.

A window of one request is planned at once: that takes less than the way to the process, which is
this module. So is one while the process does not run or does not answer, unless it is so large that
the gateway would stand still: its requests are routed without a plan. No request is lost.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from variants.function_process import FunctionProcess, serve
from variants.planning.selection_policies import plan_window
from variants.planning.window import SelectionPlan, Window

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 0.5
"""A plan of the largest window takes a tenth of it."""
MAX_HERE: Final = 256
"""Requests of a window that is planned at once: some 35 ms. Windows of requests that find no slot
grow beyond."""


class WindowPlanner:
    """One planning process, which `run` keeps alive once a window wanted it."""

    def __init__(self) -> None:
        self.process = FunctionProcess("variants.windows.window_planner")
        self.run = self.process.run

    def plan(
        self, policy: str, window: Window, then: Callable[[SelectionPlan | None], object]
    ) -> None:
        """Call `then` with the plan, now or later; None: no pod can run a variant."""
        if len(window.requests) > 1:
            self.process.want()
        if len(window.requests) == 1 or self.process.child is None:
            then(_plan_here(policy, window))
            return

        def end(planned: asyncio.Future[SelectionPlan | None]) -> None:
            is_lost = planned.exception() is not None
            then(_plan_here(policy, window) if is_lost else planned.result())

        self.process.call("plan", policy, window, timeout_s=TIMEOUT_S).add_done_callback(end)


def _plan_here(policy: str, window: Window) -> SelectionPlan | None:
    return plan_or_none(policy, window) if len(window.requests) <= MAX_HERE else None


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


if __name__ == "__main__":
    serve({"plan": plan_or_none})
