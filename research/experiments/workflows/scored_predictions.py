"""How often the next step is predicted right, given the true steps before it.

Zhang et al. 2025, section 8.4. Ends of runs count as steps; each step is scored before it is
learned.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from research.simulated_workflows.predictors import NextStepPredictor
from workflows.prediction.step_counts import END, most_likely


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
