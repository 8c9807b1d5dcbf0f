"""The way of a workflow's step: from the call to the request on the wire, and to the journal.

A run of one warm step by a scheduler in this process, through a real runner, gateway and pod; what
is called meanwhile is counted. These numbers may only fall.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Final

import httpx
import pytest

import workflows
from common.pod_secret import PodSecret
from registry.domain.model import ModelName
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from tests import servers
from tests.gateway.gateway_harness import GatewayHarness
from workflows.metrics import SchedulerMetrics
from workflows.run import Run, RunStatus
from workflows.scheduler import Scheduler
from workflows.settings import SchedulerSettings

MAX_FILES: Final = 18
"""Of `workflows/` that a run of one step visits in the scheduler, by policy `speculative`."""
MAX_STEP_FILES: Final = 9
"""Of those that do more than decide where steps run."""
DECIDING: Final = ("plan/", "predict")

ROOT: Final = Path(workflows.__file__).parent
NAME: Final = ModelName("default", "one-step")
SOURCE: Final = """
from pilotlight.workflow import model, workflow

@workflow
async def one_step(text: str):
    return (await model("writer")(text))["text"]
"""


@pytest.fixture
def pool(redis: servers.RedisServer, tmp_path: Path) -> Iterator[GatewayHarness]:
    with ExitStack() as stack:
        gateway = stack.enter_context(servers.gateway(tmp_path, redis_url=redis.url, pool="steps"))
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=60))
        pool = GatewayHarness(redis.url, "steps", gateway, client, stack)
        pool.start_pods("pod-a", warm=pool.declare("writer"))
        yield pool
        pool.threads.shutdown(cancel_futures=True)


class Visits:
    """Files of `workflows/` of which a function was called."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def note(self, frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and ROOT in path.parents:
            self.files.add(path.relative_to(ROOT).as_posix())


async def _run(scheduler: Scheduler) -> Run:
    run = await scheduler.begin(NAME, {"text": "a"})
    await run.ended.wait()
    assert (run.status, run.result) == (RunStatus.SUCCEEDED, "a"), run.error
    return run


async def _visits(pool: GatewayHarness) -> Visits:
    registry = Registry(pool.redis_url, pool.pool)
    watch, visits = ClusterWatch(registry), Visits()
    settings = SchedulerSettings(gateway_url=pool.gateway.url, pool=pool.pool)
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch.run())
        scheduler = Scheduler(settings, watch, group, PodSecret(""), SchedulerMetrics())
        async with asyncio.timeout(30):
            while not scheduler.is_ready:  # noqa: ASYNC110 - until the registry's first copy
                await asyncio.sleep(0.01)
        await scheduler.deployments.deploy(NAME, SOURCE)
        for _ in range(3):
            await _run(scheduler)
        sys.setprofile(visits.note)
        try:
            run = await _run(scheduler)
        finally:
            sys.setprofile(None)
        assert run.steps[0].predicted
        scheduler.close()
        watching.cancel()
    await registry.close()
    return visits


@pytest.mark.slow
def test_a_step_visits_few_files(pool: GatewayHarness) -> None:
    visits = asyncio.run(_visits(pool))
    files = sorted(visits.files)
    assert len(files) <= MAX_FILES, files
    beside = [each for each in files if not each.startswith(DECIDING)]
    assert len(beside) <= MAX_STEP_FILES, beside
