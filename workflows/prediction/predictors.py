"""The catalogue of next-step predictors, and what they have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from workflows.prediction.longest_context import LongestContext
from workflows.prediction.markov import markov_last, markov_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence


class NextStepPredictor(Protocol):
    """Learns from the runs of one workflow. Times in seconds of the caller's clock."""

    def probabilities(
        self, steps: Sequence[str], features: Collection[str], now_s: float
    ) -> dict[str, float]:
        """Of each model that may follow `steps`, and END; empty where nothing is known."""
        ...

    def observe(
        self, steps: Sequence[str], following: str, features: Collection[str], now_s: float
    ) -> None:
        """Count that `following`, a model or END, came after `steps`."""
        ...


PREDICTORS: Final[Mapping[str, Callable[[], NextStepPredictor]]] = {
    "longest-context": LongestContext,
    "markov-last": markov_last,
    "markov-prefix": markov_prefix,
}
DEFAULT: Final = "longest-context"
