"""Plans placements in a process of its own: no plan delays a tick or ends the autoscaler."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Final

from autoscaler.placement.planners.adoption import plan_and_compare

if TYPE_CHECKING:
    from autoscaler.placement.planners.adoption import PlanningJob, PlanningResult

_PR_SET_PDEATHSIG: Final = 1
_NICENESS: Final = 10
"""Plans may take seconds of a core that pods compute on."""


class PlanningProcess:
    """One planning process, started with the first plan and again after its death."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    async def plan(self, job: PlanningJob) -> tuple[PlanningResult, float]:
        """The plan, and the CPU seconds that it took.

        Raises InvalidPlacementInput, or BrokenProcessPool if the process ended.
        """
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, context, initializer=_enter)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, _plan, job)
        except (BrokenProcessPool, asyncio.CancelledError):
            self.close()
            raise

    @property
    def process_ids(self) -> list[int]:
        """Of the running process, if there is one."""
        return list((self._pool._processes or {}) if self._pool is not None else ())

    def close(self) -> None:
        """Kill the process; a plan in progress is lost."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        for process in list((pool._processes or {}).values()):  # there is no public way
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)


def _plan(job: PlanningJob) -> tuple[PlanningResult, float]:
    """Runs in the new process."""
    started_s = time.process_time()
    return plan_and_compare(job), time.process_time() - started_s


def _enter() -> None:
    """In the new process: it ends with its parent, which alone handles signals of the terminal."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.nice(_NICENESS)
