"""Clients learn of a run's end once it is recorded: another scheduler may have the run."""

from registry.domain.model import ModelName
from workflows.plan.policies import SchedulingPolicy
from workflows.run import Run, RunStatus


def new_run() -> Run:
    name = ModelName("default", "w")
    return Run("one", name, {}, 0.0, 60.0, SchedulingPolicy.SPECULATIVE)


def test_a_run_is_under_way_until_its_result_is_recorded() -> None:
    run = new_run()
    assert run.published_outcome()["status"] == "running"
    run.status, run.result, run.ended_s = RunStatus.SUCCEEDED, "ab", 1.0
    unrecorded = run.published_outcome()
    assert unrecorded["status"] == "running"
    assert not {"result", "seconds"} & unrecorded.keys()
    assert run.outcome()["status"] == "succeeded", "what is recorded"
    run.ended.set()
    assert (run.published_outcome()["status"], run.published_outcome()["result"]) == (
        "succeeded",
        "ab",
    )


def test_a_failure_is_unknown_until_it_is_recorded() -> None:
    run = new_run()
    run.status = RunStatus.FAILED
    run.error = {"message": "lost", "reason": "pod-died", "status": 503}
    assert run.published_outcome()["status"] == "running"
    assert "error" not in run.published_outcome()
    run.ended.set()
    assert run.published_outcome()["error"] == run.error
