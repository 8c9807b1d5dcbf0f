"""What is known of workflows' runs: which steps follow, which inputs they take."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from workflows.prediction.longest_context import HALF_LIFE_S, LongestContext
from workflows.prediction.rollout import InputPositions, PredictedStep, predicted_steps
from workflows.prediction.step_counts import END, BadCountsError


class WorkflowCounts:
    """Counts of what followed, and of the inputs that steps took."""

    def __init__(self) -> None:
        self.predictor = LongestContext()
        self.positions = InputPositions(HALF_LIFE_S)

    def merge(self, other: "WorkflowCounts", now_s: float) -> None:
        self.predictor.merge(other.predictor, now_s)
        self.positions.merge(other.positions, now_s)

    def as_json(self, now_s: float) -> dict[str, Any]:
        return {
            "at_s": now_s,
            "steps": self.predictor.as_json(now_s),
            "inputs": self.positions.as_json(now_s),
        }

    @classmethod
    def of_json(cls, stored: Mapping[str, Any], now_s: float) -> "WorkflowCounts":
        """Stored counts, which have decayed since. Raises BadCountsError where they are damaged."""
        counts, at_s = cls(), stored.get("at_s", now_s)
        if not isinstance(at_s, int | float):
            raise BadCountsError(f"the time of stored counts is a number, was {at_s!r:.100}")
        counts.predictor.read_json(stored.get("steps", {}), min(at_s, now_s))
        counts.positions.read_json(stored.get("inputs", []), min(at_s, now_s))
        return counts


class WorkflowKnowledge:
    """Counts of one workflow. Belongs to the scheduler's event loop.

    What this scheduler has counted and not stored yet is kept apart, so that several schedulers
    add to the same stored counts.
    """

    def __init__(self) -> None:
        self._counts = WorkflowCounts()
        self._unstored = WorkflowCounts()
        self.is_changed = False
        """Since it was last stored."""
        self.right = 0
        self.scored = 0

    def predict(
        self, steps: Sequence[str], features: Collection[str], now_s: float
    ) -> list[PredictedStep]:
        """The steps that are likely to follow, with the positions of their inputs."""
        return predicted_steps(
            steps, self._counts.predictor, self._counts.positions, features=features, now_s=now_s
        )

    def observe_call(
        self,
        steps: Sequence[str],
        model: str,
        inputs: Sequence[int],
        features: Collection[str],
        now_s: float,
    ) -> None:
        self._score(steps, model, features, now_s)
        for counts in (self._counts, self._unstored):
            counts.predictor.observe(steps, model, features, now_s)
            counts.positions.observe(steps, model, inputs, now_s)
        self.is_changed = True

    def observe_end(self, steps: Sequence[str], features: Collection[str], now_s: float) -> None:
        self._score(steps, END, features, now_s)
        for counts in (self._counts, self._unstored):
            counts.predictor.observe(steps, END, features, now_s)
        self.is_changed = True

    def _score(
        self, steps: Sequence[str], true: str, features: Collection[str], now_s: float
    ) -> None:
        """Accuracy of the most likely next step, before it is learned."""
        probabilities = self._counts.predictor.probabilities(steps, features, now_s)
        likeliest = min(probabilities, key=lambda name: (-probabilities[name], name), default=None)
        self.scored += 1
        self.right += likeliest == true

    # Storage

    def take_unstored(self) -> WorkflowCounts:
        """What is to be added to the stored counts; what follows counts as not stored."""
        taken, self._unstored = self._unstored, WorkflowCounts()
        self.is_changed = False
        return taken

    def put_back(self, taken: WorkflowCounts, now_s: float) -> None:
        """It could not be stored."""
        self._unstored.merge(taken, now_s)
        self.is_changed = True

    def adopt(self, stored: WorkflowCounts, now_s: float) -> None:
        """Go on from the stored counts of all schedulers, and what this one has not stored yet."""
        stored.merge(self._unstored, now_s)
        self._counts = stored
