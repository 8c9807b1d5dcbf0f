"""Plans placements in a process of its own: no plan delays a tick or ends the autoscaler.

A plan is compared with what runs now, both by the predicted goodput.
"""

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from typing import Final

from autoscaler.placement.planners.catalogue import planner_of
from autoscaler.placement.planners.plan import Placement
from autoscaler.placement.planners.prediction import Predictor
from autoscaler.placement.planners.problem import AcceleratorView, PlanParams, Profiles, Workload
from common.parent_death import die_with
from common.process import set_process_title
from registry.domain.records import PlacedReplica

_NICENESS: Final = 10
"""Plans may take seconds of a core that pods compute on."""


class PlanningProcess:
    """One planning process, started with the first plan and again after its death."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    async def plan(self, job: "PlanningJob") -> "tuple[PlanningResult, float]":
        """The plan, and the CPU seconds that it took.

        Raises InvalidPlacementInput, or BrokenProcessPool if the process ended.
        """
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(
                1, context, initializer=_enter, initargs=(os.getpid(),)
            )
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


def _plan(job: "PlanningJob") -> "tuple[PlanningResult, float]":
    """Runs in the new process."""
    started_s = time.process_time()
    return plan_and_compare(job), time.process_time() - started_s


def _enter(parent: int) -> None:
    """In the new process: it ends with its parent, which alone handles signals of the terminal."""
    die_with(parent)
    set_process_title("autoscaler planning")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.nice(_NICENESS)


@dataclass(frozen=True, slots=True)
class PlanningJob:
    """The arguments of one plan."""

    planner: str
    workloads: tuple[Workload, ...]
    accelerators: tuple[AcceleratorView, ...]
    profiles: Profiles
    current: tuple[PlacedReplica, ...]
    params: PlanParams


@dataclass(frozen=True, slots=True)
class PlanningResult:
    """A plan, and what it gains over the replicas that run now."""

    placement: Placement
    gain_rps: float


def plan_and_compare(job: PlanningJob) -> PlanningResult:
    """Raises InvalidPlacementInput, and PluginError."""
    placement = planner_of(job.planner).plan(
        job.workloads, job.accelerators, job.profiles, job.current, job.params
    )
    gain_rps = predicted_rps(job, placement.replicas) - predicted_rps(job, job.current)
    return PlanningResult(replace(placement, planner=job.planner), gain_rps)


def predicted_rps(job: PlanningJob, replicas: Sequence[PlacedReplica]) -> float:
    """Responses in time per second, of the replicas that have a profile."""
    kinds = {each.name: each.kind for each in job.accelerators}
    rates = {each.model: each.rate_rps for each in job.workloads}
    known = [
        each
        for each in replicas
        if each.model in rates
        and each.accelerator in kinds
        and job.profiles.point(each.model, kinds[each.accelerator], each.batch_size)
    ]
    in_time = Predictor(job.workloads, kinds, job.profiles, job.params).predict(known).in_time
    return sum(rates[model] * part for model, part in in_time.items())
