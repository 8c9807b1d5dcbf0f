"""Which kept outputs pods may free while the run goes on."""

from typing import Any

from common.inference_protocol.tensors import TensorReference
from registry.domain.model import ModelName
from workflows.plan.policies import SchedulingPolicy
from workflows.run import Run, RunStep, StepState
from workflows.run_control import forget_unneeded
from workflows.values import StoredTensor

MODEL = ModelName("default", "m")


def run_of(*steps: RunStep) -> Run:
    run = Run("r", MODEL, {}, 0.0, 10.0, SchedulingPolicy.GREEDY)
    run.steps.extend(steps)
    return run


def step_of(number: int, *sources: int, state: StepState = StepState.DONE) -> RunStep:
    inputs: dict[str, Any] = {f"x{each}": {"step": each, "output": None} for each in sources}
    step = RunStep(number, MODEL, inputs, 0.0)
    step.state = state
    if state is StepState.DONE:
        kept = TensorReference(f"{number:032}", f"10.0.0.{number}:80", 1 << 20)
        step.outputs = {"y": StoredTensor("y", "FP32", (1 << 18,), b"", kept)}
    return step


def freed(run: Run) -> list[str]:
    return [each.address for each in forget_unneeded(run)]


def test_nothing_is_freed_while_code_has_a_handle() -> None:
    assert freed(run_of(step_of(0), step_of(1, 0))) == []


def test_outputs_are_freed_when_the_last_step_that_takes_them_is_over() -> None:
    last = step_of(2, 0, state=StepState.RUNNING)
    run = run_of(step_of(0), step_of(1, 0), last)
    run.forgotten = {0}
    assert freed(run) == []
    last.state = StepState.FAILED
    assert freed(run) == ["10.0.0.0:80"]
    assert run.steps[0].outputs is None  # it runs again where it is needed after all
    assert freed(run) == []


def test_a_step_that_runs_again_keeps_its_inputs() -> None:
    run = run_of(step_of(0), step_of(1, 0, state=StepState.WAITING))
    run.forgotten = {0, 1}
    assert freed(run) == []


def test_outputs_that_code_waits_for_or_iterates_are_not_freed() -> None:
    run = run_of(step_of(0), step_of(1))
    run.forgotten, run.fetches, run.iterated = {0, 1}, {0}, {1: 3}
    assert freed(run) == []
    run.fetches.clear()
    assert freed(run) == ["10.0.0.0:80"]


def test_data_that_was_fetched_stays_at_the_scheduler() -> None:
    step = step_of(0)
    kept = (step.outputs or {})["y"].kept
    step.outputs = {"y": StoredTensor("y", "FP32", (1,), b"1234", kept)}
    run = run_of(step)
    run.forgotten = {0}
    assert freed(run) == ["10.0.0.0:80"]
    assert step.outputs["y"] == StoredTensor("y", "FP32", (1,), b"1234")
