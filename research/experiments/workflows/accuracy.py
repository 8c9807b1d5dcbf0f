"""How often the next step is predicted right, by predictor and application: figure 12.

Zhang et al. 2025, section 8.4: given the true steps before it. Ends of runs count as steps; each
step is scored before it is learned.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from research.simulated_workflows.applications import GENERATORS
from research.simulated_workflows.placers import PREDICTORS, NextStepPredictor
from workflows.predict import END, most_likely

CEILING_RUNS: Final = 20_000


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """A run that has ended: its models in the order of the calls."""

    steps: Sequence[str]
    features: Collection[str]
    at_s: float


@dataclass(slots=True)
class Accuracy:
    """Sums over the steps scored."""

    steps: int = 0
    likeliest_right: int = 0
    sampled_right: float = 0.0
    """Expected number: the sum of the true steps' probabilities."""

    @property
    def likeliest(self) -> float:
        """Share of steps where the likeliest was the true one; 0 without steps."""
        return self.likeliest_right / self.steps if self.steps else 0.0

    @property
    def sampled(self) -> float:
        """Expected share of steps where one drawn from the prediction is the true one."""
        return self.sampled_right / self.steps if self.steps else 0.0


def score_and_learn(
    predictor: NextStepPredictor, runs: Iterable[ObservedRun], accuracy: Accuracy
) -> None:
    """Predict each step of each run, add the result to `accuracy`, then learn it."""
    for run in runs:
        for position in range(len(run.steps) + 1):
            before = run.steps[:position]
            true = run.steps[position] if position < len(run.steps) else END
            probabilities = predictor.probabilities(before, run.features, run.at_s)
            accuracy.steps += 1
            accuracy.likeliest_right += most_likely(probabilities) == true
            accuracy.sampled_right += probabilities.get(true, 0.0)
            predictor.observe(before, true, run.features, run.at_s)


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
