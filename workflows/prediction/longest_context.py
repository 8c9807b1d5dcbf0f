"""What follows the longest stretch of the latest steps that was seen often enough.

Contexts of growing length, up to all steps so far, are blended by how much each has been seen
(Witten and Bell 1991, method C): a context with n observations of k different steps counts
n / (n + k), shorter ones the rest. Features of the request then weigh each step by how much more
often it came with them (naive Bayes).
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import exp, log
from typing import Final
from zlib import crc32

from workflows.prediction.step_counts import Context, StepCounts, shares

HALF_LIFE_S: Final = 6 * 3600.0
"""A workflow's habits of yesterday evening count a sixteenth of today's."""
_MAX_LATEST: Final = 6
"""Steps of the contexts shorter than all steps so far."""
BEGIN: Final = ""
"""Marks the context of all steps so far. No model has an empty name."""
_FEATURE_PRIOR: Final = 4.0
"""Observations that a feature's average counts as, for each step."""
_MAX_FEATURE_CONTEXTS: Final = 16_384


class LongestContext:
    """Counts of one workflow's steps by context, and by feature and latest step."""

    def __init__(self, half_life_s: float = HALF_LIFE_S) -> None:
        self._counts = StepCounts(half_life_s)
        self._by_feature = StepCounts(half_life_s, _MAX_FEATURE_CONTEXTS)

    def probabilities(
        self, steps: Sequence[str], features: Collection[str], now_s: float
    ) -> dict[str, float]:
        """Of each model that may follow `steps`, and END; empty where nothing is known."""
        blended: dict[str, float] = {}
        for context in _contexts(steps):
            counts = self._counts.after(context, now_s)
            total = sum(counts.values())
            if total <= 0:
                break
            shorter = len(counts) / (total + len(counts)) if blended else 0.0
            share = (1.0 - shorter) / total
            blended = {model: shorter * known for model, known in blended.items()}
            for model, count in counts.items():
                blended[model] = blended.get(model, 0.0) + share * count
        return self._weighed(blended, steps, features, now_s) if features else blended

    def observe(
        self, steps: Sequence[str], following: str, features: Collection[str], now_s: float
    ) -> None:
        """Count a step, or END, that followed."""
        for context in _contexts(steps):
            self._counts.add(context, following, now_s)
        for feature in features:
            self._by_feature.add((feature, *steps[-1:]), following, now_s)

    def merge(self, other: "LongestContext", now_s: float) -> None:
        """Add what another scheduler has seen."""
        self._counts.merge(other._counts, now_s)
        self._by_feature.merge(other._by_feature, now_s)

    def as_json(self, now_s: float) -> dict[str, object]:
        """All counts as of now, for storage."""
        return {"steps": self._counts.as_json(now_s), "features": self._by_feature.as_json(now_s)}

    def read_json(self, stored: Mapping[str, object], now_s: float) -> None:
        """Add stored counts. Raises BadCountsError where they are damaged."""
        self._counts.read_json(stored.get("steps", []), now_s)
        self._by_feature.read_json(stored.get("features", []), now_s)

    def _weighed(
        self,
        prior: Mapping[str, float],
        steps: Sequence[str],
        features: Collection[str],
        now_s: float,
    ) -> dict[str, float]:
        """The prior times, for each feature, how much likelier it is with each step."""
        latest = tuple(steps[-1:])
        seen = self._counts.after(latest, now_s)
        total = sum(seen.values())
        scores = {model: log(share) for model, share in prior.items() if share > 0}
        for feature in features:
            together = self._by_feature.after((feature, *latest), now_s)
            average = sum(together.values()) / total if total > 0 else 0.0
            if not 0 < average < 1:
                continue
            for model in scores:
                expected = _FEATURE_PRIOR + seen.get(model, 0.0)
                found = _FEATURE_PRIOR + together.get(model, 0.0) / average
                scores[model] += log(found / expected)
        highest = max(scores.values(), default=0.0)
        return shares({model: exp(score - highest) for model, score in scores.items()})


def _contexts(steps: Sequence[str]) -> Iterator[Context]:
    """The latest steps, from none to the longest stretch, then all steps from the begin."""
    for length in range(min(len(steps), _MAX_LATEST) + 1):
        yield tuple(steps[len(steps) - length :])
    yield (BEGIN, *steps)


MAX_WORDS: Final = 32
"""Of one argument: the first ones."""
_MAX_CHARACTERS: Final = 4096
_WORD_CLASSES: Final = 1024
_WORD_PATTERN: Final = re.compile(r"\w{3,}")


def request_features(arguments: Mapping[str, object]) -> frozenset[str]:
    """Short names, equal for requests that are alike; bounded in number and length."""
    return frozenset(
        f"{name[:32]}:{feature}"
        for name, value in arguments.items()
        for feature in _features(value)
    )


def _features(value: object) -> Iterator[str]:
    yield type(value).__name__
    match value:
        case bool() | None:
            yield f"is-{value}"
        case int() if abs(value) < 1000:
            yield f"is-{value}"
        case str():
            yield f"length-{len(value).bit_length()}"
            words = _WORD_PATTERN.findall(value[:_MAX_CHARACTERS].lower())[:MAX_WORDS]
            yield from {f"word-{crc32(word.encode()) % _WORD_CLASSES}" for word in words}
        case bytes() | list() | dict():
            yield f"length-{len(value).bit_length()}"
