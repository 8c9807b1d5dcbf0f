"""The process that plans: the result is that of the planner; a killed one is started again."""

import asyncio
import os
import signal
from concurrent.futures.process import BrokenProcessPool

import pytest

from autoscaler.place import PlanningJob, PlanningProcess
from autoscaler.placement import planner_of
from autoscaler.placement.problem import (
    AcceleratorView,
    BatchPoint,
    InvalidPlacementInput,
    ModelProfile,
    PlanParams,
    Profiles,
    Workload,
)
from registry.domain.records import PlacedReplica

pytestmark = pytest.mark.slow

_POINT = BatchPoint(4, 0.02, 200.0, 30, 40, 40, 40)


def _job(planner: str, *rates_rps: float, current: tuple[PlacedReplica, ...] = ()) -> PlanningJob:
    names = [f"m{at}" for at in range(len(rates_rps))]
    return PlanningJob(
        planner,
        tuple(Workload(name, rate, 0.2) for name, rate in zip(names, rates_rps, strict=True)),
        (AcceleratorView("g0", "gpu"), AcceleratorView("g1", "gpu")),
        Profiles(tuple(ModelProfile(name, "gpu", (_POINT,)) for name in names)),
        current,
        PlanParams(),
    )


async def test_plans_refuses_bad_input_and_survives_a_kill() -> None:
    process = PlanningProcess()
    try:
        job = _job("ao-milp", 100.0, 150.0)
        result, cpu_s = await process.plan(job)
        expected = planner_of("ao-milp").plan(
            job.workloads, job.accelerators, job.profiles, (), job.params
        )
        assert result.placement == expected
        assert result.gain_rps > 100
        assert cpu_s > 0
        kept, _ = await process.plan(_job("ao-milp", 100.0, 150.0, current=expected.replicas))
        assert kept.gain_rps == pytest.approx(0.0)
        with pytest.raises(InvalidPlacementInput, match="rps must be"):
            await process.plan(_job("ao-milp", float("nan")))
        [pid] = process.process_ids
        os.kill(pid, signal.SIGSTOP)  # else it might have answered before it is killed
        planning = asyncio.create_task(process.plan(_job("predicted-goodput", *[150.0] * 6)))
        await asyncio.sleep(0)  # the task asks the process
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(BrokenProcessPool):
            await planning
        again, _ = await process.plan(job)
        assert again.placement == expected
    finally:
        process.close()
