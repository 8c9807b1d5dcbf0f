"""What a gateway has for the applications of one pool, once one is declared."""

import asyncio
from collections.abc import Callable

from common.timers import Timers
from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName
from variants.looks.client import SneakPeekClient
from variants.windows.open_windows import Explain, OpenWindows
from variants.windows.window_planner import WindowPlanner


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
