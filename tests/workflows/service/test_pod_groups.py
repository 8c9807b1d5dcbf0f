"""Schedulers that divide a pool among them send their steps to their own pods."""

import pytest

from tests.workflows.service.harness import WorkflowHarness
from workflows.plan.problem import PodGroup

pytestmark = pytest.mark.slow

SEVERAL = """
@workflow
async def several(count: int):
    steps = [model("writer")(str(number)) for number in range(count)]
    return [(await step)["text"] for step in steps]
"""


def _group_of(pod: str, other: str) -> PodGroup:
    """A group, of as many as it takes, that has the one and not the other."""
    return next(
        group
        for groups in range(2, 20)
        for number in range(groups)
        if (group := PodGroup(number, groups)).holds(pod) and not group.holds(other)
    )


@pytest.mark.parametrize("policy", ["speculative", "greedy", "round-robin"])
def test_steps_run_at_the_pods_of_the_schedulers_group(
    harness: WorkflowHarness, policy: str
) -> None:
    name, pool = harness.deploy(SEVERAL), harness.pool
    for pod, other in (("pod-a", "pod-b"), ("pod-b", "pod-a")):
        group = _group_of(pod, other)
        with harness.other_scheduler(pod, pod_group=f"{group.number}/{group.groups}") as scheduler:
            response = pool.client.post(
                f"{scheduler.url}/v1/workflows/{name}:run",
                json={"count": 4},
                headers={"x-pilotlight-scheduling": policy},
            )
            assert response.status_code == 200, response.text
            run = harness.status(f"{harness.url}/{name}/runs/{response.json()['id']}")
        assert {step["pod"] for step in run["steps"]} == {pod}
