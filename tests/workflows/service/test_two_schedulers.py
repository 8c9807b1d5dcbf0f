"""What one scheduler has queued at a pod counts in the plans of another."""

import pytest

from registry.domain.pod import Profile, ProfilePoint
from tests import servers
from tests.gateway.gateway_harness import GatewayHarness, wait_counts
from tests.workflows.service.harness import WorkflowHarness

pytestmark = pytest.mark.slow

HELD = """
@workflow(deadline="60s")
async def held(slow: int, quick: int):
    steps = [model("hold-slow")(f"slow {each}") for each in range(slow)]
    steps += [model("hold-quick")(f"quick {each}") for each in range(quick)]
    return [(await step)["text"] for step in steps]
"""
ONE = """
@workflow
async def one(text: str):
    return (await model("both")(text))["text"]
"""


def _declare(pool: GatewayHarness, name: str, seconds: float) -> str:
    """A model whose inferences take so long; its key."""
    spec = pool.declare(name)
    profile = Profile(spec.key, "cpu", (ProfilePoint(1, seconds),))
    assert pool.run(lambda registry: registry.put_profile(profile))
    return spec.key


def test_steps_of_another_scheduler_count_with_their_models_time(harness: WorkflowHarness) -> None:
    pool = harness.pool
    slow, quick = _declare(pool, "hold-slow", 20.0), _declare(pool, "hold-quick", 0.01)
    both = _declare(pool, "both", 0.01)
    assert harness.pods is not None
    for pod, keys in (("pod-a", (slow, both)), ("pod-b", (quick, both))):
        for key in keys:
            harness.pods.control(pod, "warm", key)
    pool.wait_synced()
    held, one = harness.deploy(HELD), harness.deploy(ONE)
    arguments = {"slow": 1, "quick": 3}
    waiting = pool.threads.submit(harness.result, held, arguments, x_pilotlight_scheduling="greedy")
    wait_counts(harness.pods, "pod-a", steps=1)
    wait_counts(harness.pods, "pod-b", steps=3)
    with harness.other_scheduler("beside") as other:
        # It is ready once it has a snapshot, which has the steps: one of 20 s is more work than
        # three of 10 ms.
        response = pool.threads.submit(
            pool.client.post,
            f"{other.url}/v1/workflows/{one}:run",
            json={"text": "a"},
            headers={"x-pilotlight-scheduling": "greedy"},
        )
        pods = harness.pods
        servers.wait_until(lambda: pods.total("steps") == 5, what="step placed")
        assert (pods.counts("pod-a")["steps"], pods.counts("pod-b")["steps"]) == (1, 4)
        harness.release_until(response.done)
        assert response.result().json()["result"] == "a"
    harness.release_until(waiting.done)
    assert len(waiting.result()) == 4
