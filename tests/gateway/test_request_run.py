"""How a request's task ends early."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gateway.errors import ClientClosedRequest, UpstreamTimeout
from gateway.request_task import RequestRun
from tests.gateway.asynchronous import run_async
from tests.gateway.placer_harness import eventually


class Work:
    """Work that waits for its end; the steps that it has passed."""

    def __init__(self) -> None:
        self.running: set[Any] = set()
        self.run = RequestRun(asyncio.get_running_loop(), self.running)
        self.steps: list[str] = []
        self.cause: type[Exception] | None = None

    async def work(self, until_s: float = 60.0) -> None:
        self.run.limit(asyncio.get_running_loop().time() + until_s)
        try:
            self.steps.append("began")
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.steps.append("cancelled")
            self.cause = self.run.take_cause(is_draining=False)
        finally:
            self.run.unlimit()


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        pytest.param(RequestRun.on_disconnect, ClientClosedRequest, id="client leaves"),
        pytest.param(RequestRun.on_deadline, UpstreamTimeout, id="deadline"),
        pytest.param(RequestRun.cancel, None, id="server"),
    ],
)
@pytest.mark.parametrize("has_begun", [True, False])
@run_async
async def test_work_is_ended(
    end: Callable[[RequestRun], None], cause: type[Exception] | None, has_begun: bool
) -> None:
    it = Work()
    it.run.start(it.work())
    if has_begun:
        await eventually(lambda: it.steps)
    assert it.running == {it.run}
    end(it.run)
    await eventually(lambda: not it.running)
    assert it.steps == ["began", "cancelled"]
    assert it.cause is cause


@run_async
async def test_work_ends_at_its_deadline_also_in_a_task_of_others() -> None:
    it = Work()
    it.run = RequestRun(asyncio.get_running_loop())
    await asyncio.create_task(it.work(0.01))
    assert it.cause is UpstreamTimeout
