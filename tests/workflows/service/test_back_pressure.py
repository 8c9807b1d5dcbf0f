"""Runs that come at once, and runs that end while the registry does not answer."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from common.pod_secret import PodSecret
from registry.domain.model import ModelName, ModelSpec
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry
from registry.redis.watch import ClusterWatch
from registry.redis.workflow_log import TakenRun
from tests import servers
from workflows import scheduler as scheduler_module
from workflows.errors import WorkflowError
from workflows.metrics import SchedulerMetrics
from workflows.run import Run
from workflows.scheduler import Scheduler
from workflows.settings import SchedulerSettings

pytestmark = pytest.mark.slow

NAME = ModelName("default", "waits")
SOURCE = """
from pilotlight.workflow import model, workflow

@workflow
async def waits():
    return await model("writer")("a")
"""


@asynccontextmanager
async def scheduling(redis_url: str, *, keeps_leases: bool = True) -> AsyncIterator[Scheduler]:
    """A scheduler in this process, without a gateway: the steps of its runs wait for one."""
    registry = Registry(redis_url, "back-pressure")
    await registry.put_models([ModelSpec(ModelName("default", "writer"), "s3://m/writer")])
    watch = ClusterWatch(registry)
    settings = SchedulerSettings(gateway_url="http://127.0.0.1:1", pool="back-pressure")
    async with asyncio.TaskGroup() as group:
        scheduler = Scheduler(settings, watch, group, PodSecret(), SchedulerMetrics())
        tasks = [group.create_task(watch.run())]
        if keeps_leases:
            tasks.append(group.create_task(scheduler.keep_leases()))
        await _until(lambda: _of(scheduler.is_ready))
        await scheduler.deployments.deploy(NAME, SOURCE)
        yield scheduler
        scheduler.close()
        for task in tasks:
            task.cancel()
    await registry.close()


async def _of(value: bool) -> bool:
    return value


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():  # noqa: ASYNC110 - what other processes do
            await asyncio.sleep(0.05)


async def test_as_many_runs_as_allowed_begin_at_once(
    redis: servers.RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_module, "MAX_RUNS", 2)
    async with scheduling(redis.url) as scheduler:
        begun = await asyncio.gather(
            *(scheduler.begin(NAME, {}) for _ in range(8)), return_exceptions=True
        )
        runs = [each for each in begun if isinstance(each, Run)]
        assert len(runs) == 2
        refused = [each.reason for each in begun if isinstance(each, WorkflowError)]
        assert refused == ["too-many-runs"] * 6
        for run in runs:
            await scheduler.cancel(NAME, run.identity)
        await asyncio.gather(*(run.ended.wait() for run in runs))


async def test_a_key_finds_its_run_when_no_other_may_begin(
    redis: servers.RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_module, "MAX_RUNS", 1)
    async with scheduling(redis.url) as scheduler:
        run = await scheduler.begin(NAME, {}, idempotency_key="k")
        assert await scheduler.begin(NAME, {}, idempotency_key="k") is run
        await scheduler.cancel(NAME, run.identity)
        await run.ended.wait()


async def test_an_end_is_recorded_once_the_registry_answers(tmp_path: Path) -> None:
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with servers.redis_server(tmp_path, options=options) as redis:
        async with scheduling(redis.url) as scheduler:
            run = await scheduler.begin(NAME, {})
            redis.stop()
            await scheduler.cancel(NAME, run.identity)
            await run.ended.wait()
            redis.start()

            async def is_recorded() -> bool:
                try:
                    record = await scheduler.log.run(run.identity)
                except RegistryUnavailable:
                    return False
                return record is not None and record.result is not None

            await _until(is_recorded)


async def test_a_run_whose_end_was_not_heard_is_not_executed_again(tmp_path: Path) -> None:
    """Its lease is over when the registry answers, and its own scheduler finds that."""
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with servers.redis_server(tmp_path, options=options) as redis:
        async with scheduling(redis.url, keeps_leases=False) as scheduler:
            run = await scheduler.begin(NAME, {})
            redis.stop()
            await scheduler.cancel(NAME, run.identity)
            await run.ended.wait()
            redis.start()
            taken: list[TakenRun] = []

            async def is_taken() -> bool:
                with suppress(RegistryUnavailable):
                    taken.extend(await scheduler.log.take_runs(scheduler._owner, lease_s=60.0))
                return bool(taken)

            await _until(is_taken)
            await scheduler._take_over(taken[0])
            record = await scheduler.log.run(run.identity)
            assert record is not None
            assert record.result is not None
            assert record.result["status"] == "cancelled"
            assert scheduler._runs[run.identity] is run
