"""What is known of one workflow's runs: which steps follow, which inputs they take, how large."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workflows.prediction.input_positions import InputPositions
from workflows.prediction.longest_context import HALF_LIFE_S, LongestContext
from workflows.prediction.rollout import predicted_steps
from workflows.prediction.step_counts import END

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from workflows.prediction.rollout import PredictedStep


class WorkflowKnowledge:
    """Counts of one workflow. Belongs to the scheduler's event loop."""

    def __init__(self) -> None:
        self._predictor = LongestContext()
        self._positions = InputPositions(HALF_LIFE_S)
        self.is_changed = False
        """Since it was last stored."""
        self.right = 0
        self.scored = 0

    def predict(
        self, steps: Sequence[str], features: Collection[str], now_s: float
    ) -> list[PredictedStep]:
        """The steps that are likely to follow, with the positions of their inputs."""
        return predicted_steps(
            steps, self._predictor, self._positions, features=features, now_s=now_s
        )

    def observe_call(
        self, steps: Sequence[str], model: str, inputs: Sequence[int],
        features: Collection[str], now_s: float,
    ) -> None:  # fmt: skip
        self._score(steps, model, features, now_s)
        self._predictor.observe(steps, model, features, now_s)
        self._positions.observe(steps, model, inputs, now_s)
        self.is_changed = True

    def observe_end(self, steps: Sequence[str], features: Collection[str], now_s: float) -> None:
        self._score(steps, END, features, now_s)
        self._predictor.observe(steps, END, features, now_s)
        self.is_changed = True

    def _score(
        self, steps: Sequence[str], true: str, features: Collection[str], now_s: float
    ) -> None:
        """Accuracy of the most likely next step, before it is learned."""
        probabilities = self._predictor.probabilities(steps, features, now_s)
        likeliest = min(probabilities, key=lambda name: (-probabilities[name], name), default=None)
        self.scored += 1
        self.right += likeliest == true

    def as_json(self, now_s: float) -> dict[str, Any]:
        return {"steps": self._predictor.as_json(now_s),
                "inputs": self._positions.as_json(now_s)}  # fmt: skip

    def read_json(self, stored: Mapping[str, Any], now_s: float) -> None:
        """Add stored counts. Raises BadCountsError where they are damaged."""
        self._predictor.read_json(stored.get("steps", {}), now_s)
        self._positions.read_json(stored.get("inputs", []), now_s)
