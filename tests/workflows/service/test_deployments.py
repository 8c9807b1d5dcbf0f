"""Files are checked in processes, of which there are only so many at once."""

import asyncio

import pytest

from registry.domain.model import ModelName
from registry.redis.client import Registry
from registry.redis.workflow_log import WorkflowLog
from tests import servers
from workflows.service import deployments
from workflows.service.deployments import Deployments
from workflows.service.errors import BadFile, TooManyFiles, WorkflowError
from workflows.service.settings import SchedulerSettings


def test_more_files_than_may_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments, "MAX_CHECKS", 1)
    monkeypatch.setattr(deployments, "MAX_WAITING_CHECKS", 1)

    async def deploy_all(count: int) -> list[type[WorkflowError]]:
        # Nobody listens there: the files define no workflow, so that none is stored.
        registry = Registry(f"redis://127.0.0.1:{servers.free_port()}", "files")
        found: list[type[WorkflowError]] = []

        async def deploy(deployed: Deployments, number: int) -> None:
            try:
                await deployed.deploy(ModelName("default", f"w{number}"), "x = 1")
            except WorkflowError as error:
                found.append(type(error))

        try:
            async with asyncio.TaskGroup() as group:
                ignore = lambda *_: None  # noqa: E731
                deployed = Deployments(
                    SchedulerSettings(), group, WorkflowLog(registry),
                    on_message=ignore, on_stopped=ignore, on_resumed=ignore,
                )  # fmt: skip
                await asyncio.gather(*(deploy(deployed, number) for number in range(count)))
                await deploy(deployed, count)  # there is room again
        finally:
            await registry.close()
        return found

    found = asyncio.run(deploy_all(4))
    assert found[:2] == [TooManyFiles] * 2
    assert found[2:] == [BadFile] * 3
