"""How often the next step is predicted right, by predictor and application: figure 12."""

import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Final

from research.experiments.workflows.scored_predictions import Accuracy, ObservedRun, score_and_learn
from research.simulated_workflows.applications import GENERATORS
from research.simulated_workflows.predictors import PREDICTORS
from workflows.prediction.step_counts import END

CEILING_RUNS: Final = 20_000


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


def ceiling(workflow: str, runs: int = CEILING_RUNS) -> float:
    """The share that no predictor can exceed which knows the steps so far and the features.

    By counts of the generator's own requests, so a little too high where few are alike.
    """
    rng = random.Random(0)
    counts: dict[object, Counter[str]] = defaultdict(Counter)
    for _ in range(runs):
        request = GENERATORS[workflow](rng)
        names = [*(call.model for call in request.calls), END]
        for position, name in enumerate(names):
            counts[request.features, tuple(names[:position])][name] += 1
    likeliest = sum(max(each.values()) for each in counts.values())
    return likeliest / sum(each.total() for each in counts.values())
