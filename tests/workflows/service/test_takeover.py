"""Another scheduler resumes the runs of one that is gone, from the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests import servers
from tests.workflows.service.harness import running_scheduler

if TYPE_CHECKING:
    from tests.workflows.service.harness import WorkflowHarness

pytestmark = pytest.mark.slow


def test_a_run_outlives_its_scheduler(harness: WorkflowHarness) -> None:
    name = harness.deploy(
        """
        @workflow(deadline="60s")
        async def long(text: str):
            first = (await model("writer")(text))["text"]
            drawn = random().random()
            second = (await model("hold-writer")(first + "b"))["text"]
            return [first, second, drawn]
        """
    )
    location = harness.start(name, {"text": "a"})
    servers.wait_until(lambda: len(harness.status(location)["steps"]) == 2, what="second step")
    executed = _executed(harness)
    port = urlsplit(harness.scheduler.url).port
    assert port is not None
    harness.scheduler.kill()
    pool = harness.pool
    harness.scheduler = pool.stack.enter_context(
        running_scheduler(
            harness.folder / "second", pool.redis_url, pool.pool, pool.gateway.url, port=port
        )
    )

    def has_ended() -> bool:
        harness.release()
        return bool(harness.status(location)["status"] != "running")

    servers.wait_until(has_ended, what="run ended", timeout_s=60)
    document = harness.status(location)
    assert document["status"] == "succeeded", document
    assert document["result"][:2] == ["a", "ab"]
    assert document["resumptions"] == 1
    assert _executed(harness) - executed <= 2, "the first step was in the journal"
    assert [step["state"] for step in document["steps"]] == ["done", "done"]


def _executed(harness: WorkflowHarness) -> int:
    assert harness.pods is not None
    return harness.pods.total("executed")
