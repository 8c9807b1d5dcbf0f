"""A runner that answers is not killed, however late its scheduler hears of it."""

import asyncio
import time
from typing import Any

import pytest

from tests.registry.redis.clients import until
from workflows import deployments as runner_process
from workflows.deployments import RunnerProcess
from workflows.settings import SchedulerSettings

SOURCE = "from pilotlight.workflow import workflow\n@workflow\nasync def one():\n    return 1\n"


@pytest.mark.slow
async def test_a_runner_outlives_a_pause_of_its_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    interval_s = 0.1
    monkeypatch.setattr(runner_process, "PING_INTERVAL_S", interval_s)
    received: list[dict[str, Any]] = []
    exits: list[RunnerProcess] = []
    runner = RunnerProcess(SchedulerSettings(), received.append, exits.append)
    await runner.load({"source": SOURCE})
    task = asyncio.create_task(runner.run())
    await asyncio.sleep(3 * interval_s)  # a few pings, which are answered
    time.sleep(2 * interval_s * runner_process.MAX_UNANSWERED)  # noqa: ASYNC251 - the pause
    await asyncio.sleep(3 * interval_s)  # it would be killed in the first of them
    runner.send({"type": "run", "run": "1", "seed": "a", "arguments": {}, "begun_s": 0.0})
    await until(lambda: received or exits, what="an answer")
    assert (exits, received[0]["type"]) == ([], "done")
    await runner.stop()
    await task
