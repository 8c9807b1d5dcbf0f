"""How often the next step is predicted right, by predictor and application: figure 12."""

from __future__ import annotations

import random
from dataclasses import dataclass

from load.experiments.workflows.applications import GENERATORS
from workflows.prediction.accuracy import Accuracy, ObservedRun, score_and_learn
from workflows.prediction.predictors import PREDICTORS


@dataclass(frozen=True, slots=True)
class AccuracyTask:
    workflow: str
    predictor: str
    seed: int
    runs: int


def next_step_accuracy(task: AccuracyTask) -> tuple[float, float]:
    """Shares of steps, END included, where the likeliest is right, and a drawn one is."""
    rng = random.Random(task.seed)
    accuracy = Accuracy()
    runs = []
    for number in range(task.runs):
        request = GENERATORS[task.workflow](rng)
        runs.append(
            ObservedRun([call.model for call in request.calls], request.features, number / 2)
        )
    score_and_learn(PREDICTORS[task.predictor](), runs, accuracy)
    return accuracy.likeliest, accuracy.sampled
