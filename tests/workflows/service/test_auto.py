"""Steps whose pods the gateway chooses."""

import pytest

from tests import servers
from tests.workflows.service.harness import WorkflowHarness

pytestmark = pytest.mark.slow


def test_steps_by_auto_wait_in_step_queues(harness: WorkflowHarness) -> None:
    name = harness.deploy(
        """
        @workflow(deadline="60s")
        async def six():
            steps = [model("hold-writer")(f"text {number}") for number in range(6)]
            return [(await step)["text"] for step in steps]
        """
    )
    pods = harness.pods
    assert pods is not None
    waiting = harness.pool.threads.submit(harness.result, name, x_pilotlight_scheduling="auto")
    servers.wait_until(lambda: pods.total("steps") == 6, what="all steps at pods of one slot each")
    harness.release_until(waiting.done)
    assert waiting.result() == [f"text {number}" for number in range(6)]
