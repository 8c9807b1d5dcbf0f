"""The steps that a run is expected to take from here, to its end, and the outputs that they take.

Zhang et al. 2025, section 5.2: sampled one after the other until the end is. The paper has no
horizon; here predictions stop at 32 steps and below a probability of 0.05 for the path. It predicts
models only; a placement needs to know what moves where as well.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

from workflows.prediction.longest_context import BEGIN
from workflows.prediction.step_counts import END, Context, StepCounts, most_likely


class InputPositions:
    """Counts of relative input positions by a step's model and all models before it.

    Where these were never seen together, those by the step's model and the one before it count.
    """

    def __init__(self, half_life_s: float = inf) -> None:
        self._counts = StepCounts(half_life_s)

    def observe(
        self, steps: Sequence[str], model: str, inputs: Sequence[int], now_s: float
    ) -> None:
        """Count that `model`, called after `steps`, took the outputs of the steps `inputs`."""
        offsets = sorted({position - len(steps) for position in inputs})
        for context in _input_contexts(steps, model):
            self._counts.add(context, ",".join(map(str, offsets)), now_s)

    def expected(self, steps: Sequence[str], model: str, now_s: float) -> tuple[int, ...]:
        """Positions of the inputs most often taken; of an unseen step, the step before it."""
        for context in _input_contexts(steps, model):
            offsets = most_likely(self._counts.after(context, now_s))
            if offsets is not None:
                break
        else:
            return (len(steps) - 1,) if steps else ()
        found = [len(steps) + int(offset) for offset in offsets.split(",") if offset]
        return tuple(position for position in found if position >= 0)

    def merge(self, other: "InputPositions", now_s: float) -> None:
        """Add what another scheduler has seen."""
        self._counts.merge(other._counts, now_s)

    def as_json(self, now_s: float) -> list[list[object]]:
        """All counts as of now, for storage."""
        return self._counts.as_json(now_s)

    def read_json(self, stored: object, now_s: float) -> None:
        """Add stored counts. Raises BadCountsError where they are damaged."""
        self._counts.read_json(stored, now_s)


def _input_contexts(steps: Sequence[str], model: str) -> tuple[Context, Context]:
    return (BEGIN, *steps, model), (*steps[-1:], model)


MAX_STEPS: Final = 32
MIN_PATH_PROBABILITY: Final = 0.05


class StepProbabilities(Protocol):
    """A predictor, such as `LongestContext`."""

    def probabilities(
        self, steps: Sequence[str], features: Collection[str], now_s: float
    ) -> dict[str, float]:
        """Of each model that may follow `steps`, and END; empty where nothing is known."""
        ...


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
    predictor: StepProbabilities,
    positions: InputPositions,
    *,
    features: Collection[str],
    now_s: float,
) -> list[PredictedStep]:
    """Continue the known steps by the likeliest ones."""
    run, path, found = list(known), 1.0, list[PredictedStep]()
    while len(found) < MAX_STEPS:
        probabilities = predictor.probabilities(run, features, now_s)
        model = most_likely(probabilities)
        if model is None or model == END:
            break
        path *= probabilities[model]
        if path < MIN_PATH_PROBABILITY:
            break
        found.append(PredictedStep(model, positions.expected(run, model, now_s), path))
        run.append(model)
    return found
