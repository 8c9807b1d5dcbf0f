"""Policies that place single steps, beside models that change or go."""

import asyncio

import pytest

from registry.domain.model import ModelName, ModelRecord, ModelSpec, Tier
from registry.domain.pod import PodInfo
from registry.domain.pod_index import Residency
from registry.domain.pod_state import PodState
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from tests.workflows.service.alone import new_planner
from workflows.plan.pods import PodQueues
from workflows.plan.problem import SchedulingPolicy
from workflows.run import Run, RunStep, StepState

WRITER, JUDGE = ModelName("default", "writer"), ModelName("default", "judge")


def _pod(name: str) -> PodState:
    return PodState(PodInfo(name, "127.0.0.1:1", "n", memory_bytes=1 << 40))


def _watch() -> ClusterWatch:
    return ClusterWatch(Registry("redis://127.0.0.1:1/0", "nowhere"))


@pytest.fixture
def pods() -> PodQueues:
    """One pod, which nothing listens at, and two models."""
    queues = PodQueues(_watch())
    queues.state.pods["p"] = _pod("p")
    for name in (WRITER, JUDGE):
        queues.state.models[name] = ModelRecord(ModelSpec(name, f"s3://m/{name.name}"))
    return queues


def test_a_deleted_model_fails_no_other_step(pods: PodQueues) -> None:
    run = Run("r", ModelName("default", "w"), {}, 0.0, 60.0, SchedulingPolicy.GREEDY)
    step = RunStep(0, WRITER, {}, 0.0)
    assert pods.place_alone(run, step) == "p"
    pods.steps.assign("other", 0, "p", pods.key(JUDGE), ready_s=0.0)
    del pods.state.models[JUDGE]
    assert pods.place_alone(run, step) == ""  # the gateway chooses


async def test_outputs_of_a_step_that_the_gateway_placed_are_freed_where_its_model_is() -> None:
    async with asyncio.TaskGroup() as group:
        planner = new_planner(group)
        state, spec = planner._pods.state, ModelSpec(WRITER, "s3://m/writer")
        state.models[WRITER] = ModelRecord(spec)
        for number, name in enumerate(("holds", "loads", "has-files", "idle")):
            state.pods[name] = PodState(PodInfo(name, f"10.0.0.{number}:1", "n"))
        state.residency.put(spec.key, "holds", Residency(Tier.DEVICE, None, 0.0, 1))
        state.residency.put(spec.key, "loads", Residency(Tier.REMOTE, Tier.REMOTE, 0.0, 1))
        state.residency.put(spec.key, "has-files", Residency(Tier.DISK, None, 0.0, 1))
        run = Run("r", ModelName("default", "w"), {}, 0.0, 60.0, SchedulingPolicy.AUTO)
        run.steps.append(RunStep(0, WRITER, {}, 0.0, state=StepState.RUNNING))
        assert planner.possible_keepers(run) == {"10.0.0.0:1", "10.0.0.1:1"}
        run.steps[0].state = StepState.DONE
        assert planner.possible_keepers(run) == set()
