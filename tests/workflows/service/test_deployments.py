"""Files are checked in processes, of which there are only so many at once."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from registry.domain.model import ModelName
from registry.redis.client import Registry
from registry.redis.workflow_log import WorkflowLog
from tests import servers
from tests.registry.redis.clients import until
from workflows import deployments
from workflows.deployments import Deployments
from workflows.errors import WorkflowError
from workflows.run import Run
from workflows.settings import SchedulerSettings

ONE = "from pilotlight.workflow import workflow\n@workflow\nasync def one():\n    return 1\n"
WAITING = """
from pilotlight.workflow import model, workflow

@workflow
async def waiting():
    return await model("m")("a")
"""
NAME = ModelName("default", "one")


@contextlib.asynccontextmanager
async def deploying(
    redis_url: str, on_message: Callable[[Run, Mapping[str, Any]], None] = lambda *_: None
) -> AsyncIterator[Deployments]:
    registry = await Registry.connect(redis_url, "deployments")
    ignore = lambda *_: None  # noqa: E731
    try:
        async with asyncio.TaskGroup() as group:
            deployed = Deployments(
                SchedulerSettings(),
                group,
                WorkflowLog(registry),
                on_message=on_message,
                on_stopped=ignore,
                on_resumed=ignore,
            )
            yield deployed
            deployed.stop()
    finally:
        await registry.close()


def a_run(identity: str) -> Run:
    return Run(identity, NAME, {}, 0.0, 60.0, "greedy")


async def test_a_run_that_has_found_a_file_is_executed_although_another_is_deployed(
    redis: servers.RedisServer,
) -> None:
    done: set[str] = set()

    def on_message(run: Run, message: Mapping[str, Any]) -> None:
        if message["type"] == "done":
            done.add(run.identity)
            deployed.forget(run)

    async with deploying(redis.url, on_message) as deployed:
        await deployed.deploy(NAME, ONE)
        found = await deployed.find(NAME)
        await deployed.start_run(found, a_run("first"))
        await until(lambda: "first" in done, what="first run ended")
        await deployed.deploy(NAME, ONE + "# newer")
        await deployed.start_run(found, a_run("second"))
        await until(lambda: "second" in done, what="second run ended", timeout_s=20)
        assert found.runner is None


async def test_a_run_taken_over_again_is_not_cancelled_with_its_earlier_execution(
    redis: servers.RedisServer,
) -> None:
    received: list[tuple[Run, str]] = []

    async with deploying(
        redis.url, lambda run, message: received.append((run, message["type"]))
    ) as deployed:
        await deployed.deploy(NAME, WAITING)
        found, lost, again = await deployed.find(NAME), a_run("same"), a_run("same")
        await deployed.start_run(found, lost)
        await until(lambda: (lost, "fetch") in received, what="the run waits")
        deployed.send(lost, {"type": "cancel"})
        deployed.forget(lost)
        time.sleep(0.5)  # noqa: ASYNC251 - it reports its end before this loop reads anything
        await deployed.start_run(found, again)
        await until(lambda: (again, "fetch") in received, what="it waits again")
        assert [kind for run, kind in received if run is again] == ["step", "fetch"]


async def test_runners_of_replaced_files_end_with_the_scheduler(redis: servers.RedisServer) -> None:
    received: list[tuple[Run, str]] = []

    async with (
        asyncio.timeout(30),
        deploying(
            redis.url, lambda run, message: received.append((run, message["type"]))
        ) as deployed,
    ):
        await deployed.deploy(NAME, WAITING)
        found, run = await deployed.find(NAME), a_run("waits")
        await deployed.start_run(found, run)
        await until(lambda: (run, "fetch") in received, what="the run waits")
        await deployed.deploy(NAME, ONE)
        assert found.runner is not None


async def test_a_runner_whose_runs_ended_while_it_started_is_not_left(
    redis: servers.RedisServer,
) -> None:
    async with deploying(redis.url) as deployed:
        await deployed.deploy(NAME, ONE)
        found, run = await deployed.find(NAME), a_run("brief")
        starting = asyncio.create_task(deployed.start_run(found, run))
        await until(lambda: run.host is found)
        await deployed.delete(NAME)
        deployed.forget(run)
        await starting
        assert (found.runner, found.runs) == (None, {})


def test_more_files_than_may_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments, "MAX_CHECKS", 1)
    monkeypatch.setattr(deployments, "MAX_WAITING_CHECKS", 1)

    async def deploy_all(count: int) -> list[str]:
        # Nobody listens there: the files define no workflow, so that none is stored.
        registry = Registry(f"redis://127.0.0.1:{servers.free_port()}", "files")
        found: list[str] = []

        async def deploy(deployed: Deployments, number: int) -> None:
            try:
                await deployed.deploy(ModelName("default", f"w{number}"), "x = 1")
            except WorkflowError as error:
                found.append(error.reason)

        try:
            async with asyncio.TaskGroup() as group:
                ignore = lambda *_: None  # noqa: E731
                deployed = Deployments(
                    SchedulerSettings(),
                    group,
                    WorkflowLog(registry),
                    on_message=ignore,
                    on_stopped=ignore,
                    on_resumed=ignore,
                )
                await asyncio.gather(*(deploy(deployed, number) for number in range(count)))
                await deploy(deployed, count)  # there is room again
        finally:
            await registry.close()
        return found

    found = asyncio.run(deploy_all(4))
    assert found[:2] == ["too-many-files"] * 2
    assert found[2:] == ["bad-file"] * 3
