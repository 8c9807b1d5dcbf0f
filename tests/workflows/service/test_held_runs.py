"""Runs of a scheduler that loses some, cannot begin others, or resumes one without the registry."""

import signal
import time

import pytest
import redis

from tests import servers
from tests.runtime.http import metric
from tests.workflows.service.harness import WorkflowHarness
from tests.workflows.service.test_takeover import HELD, leases

pytestmark = pytest.mark.slow


def test_a_scheduler_that_has_lost_a_run_keeps_its_others(harness: WorkflowHarness) -> None:
    name, process = harness.deploy(HELD), harness.scheduler.process
    lost = harness.start(name, {"text": "a"})
    servers.wait_until(lambda: len(harness.status(lost)["steps"]) == 2, what="second step")
    process.send_signal(signal.SIGSTOP)
    try:
        with harness.other_scheduler("taker") as taker:
            servers.wait_until(
                lambda: "run taken over" in taker.log_file.read_text(), what="run taken over"
            )
            process.send_signal(signal.SIGCONT)
            log = harness.scheduler.log_file
            servers.wait_until(
                lambda: "run lost to another scheduler" in log.read_text(), what="run lost"
            )
            kept = harness.start(name, {"text": "b"})
            identity = kept.rpartition("/")[2]
            first_ms = leases(harness)[identity]
            servers.wait_until(lambda: leases(harness)[identity] > first_ms, what="lease renewed")
            assert taker.log_file.read_text().count("run taken over") == 1
            assert harness.released(lost)["result"] == "ab"
            assert harness.released(kept)["result"] == "bb"
    finally:
        process.send_signal(signal.SIGCONT)


def test_a_run_whose_runner_does_not_start_is_over(harness: WorkflowHarness) -> None:
    ends_s = time.time() + 5
    name = harness.deploy(
        f"""
        import time
        if time.time() > {ends_s}:
            raise ValueError("too late")

        @workflow(deadline="60s")
        async def once():
            return 1
        """
    )
    servers.wait_until(lambda: time.time() > ends_s, what="the file is too old")
    response = harness.run(name, idempotency_key="late")
    assert (response.status_code, response.json()["reason"]) == (400, "bad-file"), response.text
    active = "pilotlight_workflow_runs_active"
    assert metric(harness.scheduler.url, active) == 0
    assert harness.run(name, idempotency_key="late").json()["reason"] == "bad-file"


def test_a_run_is_taken_over_again_where_the_registry_failed_meanwhile(
    harness: WorkflowHarness,
) -> None:
    name = harness.deploy(HELD)
    location = harness.start(name, {"text": "a"})
    servers.wait_until(lambda: len(harness.status(location)["steps"]) == 2, what="second step")
    workflows = f"pilotlight:{{{harness.pool.pool}}}:workflows"
    with redis.Redis.from_url(harness.pool.redis_url) as client:
        client.rename(workflows, f"{workflows}-aside")
        client.set(workflows, "no hash, which is an error")
        harness.replace_scheduler("resuming")
        log = harness.scheduler.log_file
        servers.wait_until(lambda: "run taken over" in log.read_text(), what="run taken over")
        servers.wait_until(
            lambda: log.read_text().count("run taken over") > 1, what="run taken over again"
        )
        client.rename(f"{workflows}-aside", workflows)
    assert harness.released(location)["result"] == "ab"
