"""The steps that a run is expected to take from here, to its end.

Zhang et al. 2025, section 5.2: sampled one after the other until the end is. The paper has no
horizon; here predictions stop at 32 steps and below a probability of 0.05 for the path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from workflows.prediction.probabilities import most_likely
from workflows.prediction.step_counts import END

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from workflows.prediction.input_positions import InputPositions
    from workflows.prediction.predictors import NextStepPredictor

MAX_STEPS: Final = 32
MIN_PATH_PROBABILITY: Final = 0.05


@dataclass(frozen=True, slots=True)
class PredictedStep:
    """A step that no call has asked for yet."""

    model: str
    inputs: tuple[int, ...]
    """Positions in the run, known steps first."""
    probability: float
    """Of this step and all predicted ones before it."""


def predicted_steps(
    known: Sequence[str],
    predictor: NextStepPredictor,
    positions: InputPositions,
    *,
    features: Collection[str],
    now_s: float,
    choose: Callable[[Mapping[str, float]], str | None] = most_likely,
) -> list[PredictedStep]:
    """Continue the known steps; `choose` takes the likeliest step or draws one."""
    run, path, found = list(known), 1.0, list[PredictedStep]()
    while len(found) < MAX_STEPS:
        probabilities = predictor.probabilities(run, features, now_s)
        model = choose(probabilities)
        if model is None or model == END:
            break
        path *= probabilities[model]
        if path < MIN_PATH_PROBABILITY:
            break
        found.append(PredictedStep(model, positions.expected(run, model, now_s), path))
        run.append(model)
    return found
