"""The catalogue of next-step predictors: the live one, and plain frequencies of what followed.

The latter as the paper prints them, without smoothing or decay.

Zhang et al. 2025, section 5.2. The key (a, T_k) reads as the last step, the text ("given a sequence
of observed tasks") as all steps so far: both are here.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import Final, Protocol

from workflows.predict import Context, LongestContext, StepCounts, shares


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


class MarkovModel:
    """Frequencies by one context made of the steps so far."""

    def __init__(self, context: Callable[[Sequence[str]], Context]) -> None:
        self._context = context
        self._counts = StepCounts(half_life_s=inf)

    def probabilities(
        self, steps: Sequence[str], features: Collection[str], now_s: float
    ) -> dict[str, float]:
        """Of what follows `steps`; empty for a context never seen. Features count nothing."""
        del features
        return shares(self._counts.after(self._context(steps), now_s))

    def observe(
        self, steps: Sequence[str], following: str, features: Collection[str], now_s: float
    ) -> None:
        """Count a step, or END, that followed."""
        del features
        self._counts.add(self._context(steps), following, now_s)


def markov_last() -> MarkovModel:
    return MarkovModel(lambda steps: tuple(steps[-1:]))


def markov_prefix() -> MarkovModel:
    return MarkovModel(tuple)


PREDICTORS: Final[Mapping[str, Callable[[], NextStepPredictor]]] = {
    "longest-context": LongestContext,
    "markov-last": markov_last,
    "markov-prefix": markov_prefix,
}
