"""Simulated devices and runs: nothing is lost, memory holds, policies differ as they must."""

from __future__ import annotations

import gzip
import random
from typing import TYPE_CHECKING

import pytest

from load.experiments.workflows import constants
from load.experiments.workflows.accuracy import AccuracyTask, next_step_accuracy
from load.experiments.workflows.applications import APPLICATIONS, GENERATORS, models_of
from load.experiments.workflows.simulation import WorkflowSimulation, WorkflowTask

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of three models with one request each a minute."""
    file = tmp_path / "trace.csv.gz"
    first = 227 * 120
    lines = [f"{first + minute},M{model:04},1" for minute in range(2) for model in range(3)]
    with gzip.open(file, "wt") as out:
        out.write("\n".join(("minute,model,count", *lines)) + "\n")
    return file


def task(trace: Path, application: str, policy: str, rate_per_s: float = 0.4) -> WorkflowTask:
    memory = constants.MEMORY_BYTES[application]
    return WorkflowTask(application, policy, 1, 3, memory, rate_per_s, trace, 1)


@pytest.mark.parametrize("policy", ["speculative", "greedy", "round-robin"])
@pytest.mark.parametrize("application", list(APPLICATIONS))
def test_every_step_runs_once_after_its_inputs(trace: Path, application: str, policy: str) -> None:
    simulation = WorkflowSimulation(task(trace, application, policy))
    result = simulation.run()
    assert result.requests >= 20
    for run in simulation.runs:
        assert len(run.steps) == len(run.request.calls)
        for step, call in zip(run.steps, run.request.calls, strict=True):
            assert step.begun_s is not None
            for number in (*call.inputs, *call.known_after):
                assert (run.steps[number].end_s or 0.0) <= step.begun_s
    for device in simulation.devices:
        held = sum(constants.MODELS[model].size_bytes for model in device.loaded)
        assert held <= device.memory_bytes
        assert not device.queue
        assert not device.wanted


def test_the_same_seed_gives_the_same_result(trace: Path) -> None:
    first = WorkflowSimulation(task(trace, "mix", "speculative")).run()
    assert WorkflowSimulation(task(trace, "mix", "speculative")).run() == first


def test_steps_of_several_runs_share_batches_under_load(trace: Path) -> None:
    low = WorkflowSimulation(task(trace, "debate", "greedy", 0.1)).run()
    high = WorkflowSimulation(task(trace, "debate", "greedy", 5.0)).run()
    assert high.batch > 2 * low.batch


@pytest.mark.parametrize("workflow", list(GENERATORS))
def test_requests_call_their_workflows_models(workflow: str) -> None:
    rng = random.Random(1)
    seen = {call.model for _ in range(400) for call in GENERATORS[workflow](rng).calls}
    assert seen == set(models_of(workflow))


def test_words_of_the_prompt_predict_the_card() -> None:
    plain, _ = next_step_accuracy(AccuracyTask("knowledge-card", "markov-prefix", 1, 600))
    ours, _ = next_step_accuracy(AccuracyTask("knowledge-card", "longest-context", 1, 600))
    assert ours > plain + 0.05
