"""`pilotlight explain RUN`: what a run's plans and steps say of it."""

import pytest

from tests.pilotlight.conftest import run_cli
from tests.workflows.service.harness import TWO_STEPS, WorkflowHarness

pytestmark = pytest.mark.slow


def test_a_run_is_explained(harness: WorkflowHarness) -> None:
    name = harness.deploy(TWO_STEPS)
    for _ in range(3):
        harness.result(name, {"text": "a"})
    location = harness.start(name, {"text": "a"})
    run = harness.wait_ended(location)["id"]
    gateway = harness.pool.gateway.url
    told = run_cli("explain", run, "--gateway", gateway)
    assert told.status == 0, told.err
    assert f"run {run} of default/{name}: succeeded, speculative" in told.out
    assert "pod-a: " in told.out
    assert "writer" in told.out
    document = run_cli("explain", run, "--gateway", gateway, "--json").document
    candidates = document["plans"][0]["steps"][0]["candidates"]
    assert {each["pod"] for each in candidates} == {"pod-a", "pod-b"}
    assert run_cli("explain", "0" * 32, "--gateway", gateway).status == 1
