"""What a gateway has for a pool's applications: windows, and processes beside its event loop.

Windows are planned in a process, which is this module, so that no other request waits for a plan.
A window of one request is planned at once: that takes less than the way to the process. So is one
while the process does not run or does not answer, unless it is so large that the gateway would
stand still: its requests are routed without a plan. No request is lost.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from common.timers import Timers
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName
from variants.function_process import FunctionProcess, serve
from variants.look_client import SneakPeekClient
from variants.open_windows import Explain, OpenWindows
from variants.planning.search import plan_window
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
        self.process = FunctionProcess("variants.live")
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


class LiveApplications:
    """Windows of requests, and the processes that plan them and look at their data."""

    def __init__(
        self,
        state: ClusterState,
        load: Callable[[ModelName, str], object],
        timers: Timers,
        now_s: Callable[[], float],
        explain: Explain,
        *,
        count_look: Callable[[str], object],
        is_granted: Callable[[str, str], bool],
    ) -> None:
        """As `OpenWindows` and `SneakPeekClient`."""
        self._planner = WindowPlanner()
        self.windows = OpenWindows(state, self._planner.plan, load, timers, now_s, explain)
        self.looks = SneakPeekClient(state, count_look, is_granted)

    def notify_change(self) -> None:
        """Called after each change of the cluster state."""
        self.looks.sync()
        self.windows.notify_change()

    async def run(self) -> None:
        """Keep the processes alive, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.looks.run())
            group.create_task(self._planner.run())


if __name__ == "__main__":
    serve({"plan": plan_or_none})
