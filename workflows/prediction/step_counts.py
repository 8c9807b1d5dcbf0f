"""What followed each beginning of a workflow's runs: decaying counts that can be merged and kept.

Zhang et al. 2025, section 5.2: the table (application, T_k) -> {(S_i, f_i)}, S_0 the end of a run.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Final, TypeAlias

END: Final = ""
"""Follows the last step of a run. No model has an empty name."""
MAX_CONTEXTS: Final = 4096
"""Of one workflow; beyond it the contexts seen longest ago go."""

Context: TypeAlias = tuple[str, ...]


class BadCountsError(ValueError):
    """Stored counts that are damaged; says where."""


@dataclass(slots=True)
class _Followers:
    by_model: dict[str, float] = field(default_factory=dict)
    at_s: float = 0.0
    """Time of the counts, which decay from then on."""

    def decay(self, now_s: float, half_life_s: float) -> None:
        passed_s = now_s - self.at_s
        self.at_s = now_s
        if 0 < passed_s < inf and half_life_s < inf:
            factor = 0.5 ** (passed_s / half_life_s)
            for model in self.by_model:
                self.by_model[model] *= factor


class StepCounts:
    """Counts of the steps that followed each context, by one workflow."""

    def __init__(self, half_life_s: float = inf, max_contexts: int = MAX_CONTEXTS) -> None:
        """Counts halve in `half_life_s` seconds; infinite: plain frequencies."""
        self._half_life_s = half_life_s
        self._max_contexts = max_contexts
        self._followers: dict[Context, _Followers] = {}

    def add(self, context: Context, model: str, now_s: float, count: float = 1.0) -> None:
        """Count a step that followed. A clock that was set back stops the decay once."""
        followers = self._followers.pop(context, None) or _Followers(at_s=now_s)
        followers.decay(now_s, self._half_life_s)
        followers.by_model[model] = followers.by_model.get(model, 0.0) + count
        self._followers[context] = followers
        if len(self._followers) > self._max_contexts:
            del self._followers[next(iter(self._followers))]

    def after(self, context: Context, now_s: float) -> dict[str, float]:
        """Counts of what followed, END included; empty for a context never seen."""
        followers = self._followers.get(context)
        if followers is None:
            return {}
        followers.decay(now_s, self._half_life_s)
        return dict(followers.by_model)

    def merge(self, other: "StepCounts", now_s: float) -> None:
        """Add another scheduler's counts to these."""
        for context in other._followers:
            for model, count in other.after(context, now_s).items():
                self.add(context, model, now_s, count)

    def as_json(self, now_s: float) -> list[list[object]]:
        """[context, {model: count}] pairs as of now, for storage."""
        return [[list(context), self.after(context, now_s)] for context in self._followers]

    def read_json(self, stored: object, now_s: float) -> None:
        """Add stored counts. Raises BadCountsError without adding any where one is damaged."""
        checked = [_checked(entry) for entry in _entries(stored)]
        for context, followers in checked:
            for model, count in followers.items():
                self.add(context, model, now_s, count)


def _entries(stored: object) -> Iterable[object]:
    if not isinstance(stored, list):
        raise BadCountsError(f"step counts are a list, not {type(stored).__name__}")
    return stored


def _checked(entry: object) -> tuple[Context, Mapping[str, float]]:
    match entry:
        case [list(context), dict(followers)] if _are_names(context) and _are_names([*followers]):
            for model, count in followers.items():
                if not isinstance(count, int | float) or not isfinite(count) or count < 0:
                    raise BadCountsError(
                        f"count of {model!r} after {context} is {count!r}, not a number from 0"
                    )
            return tuple(context), followers
    raise BadCountsError(f"{entry!r:.100} is no pair of a context and counts by model")


def _are_names(values: Sequence[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def shares(counts: Mapping[str, float]) -> dict[str, float]:
    """Counts as probabilities; empty where there are none."""
    total = sum(counts.values())
    return {model: count / total for model, count in counts.items()} if total > 0 else {}


def most_likely(probabilities: Mapping[str, float]) -> str | None:
    """The likeliest step, the first by name among equals; None where nothing is known."""
    if not probabilities:
        return None
    return min(probabilities, key=lambda model: (-probabilities[model], model))
