"""From counts to probabilities, and from probabilities to one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def shares(counts: Mapping[str, float]) -> dict[str, float]:
    """Counts as probabilities; empty where there are none."""
    total = sum(counts.values())
    return {model: count / total for model, count in counts.items()} if total > 0 else {}


def most_likely(probabilities: Mapping[str, float]) -> str | None:
    """The likeliest step, the first by name among equals; None where nothing is known."""
    if not probabilities:
        return None
    return min(probabilities, key=lambda model: (-probabilities[model], model))


def drawn(probabilities: Mapping[str, float], draw: float) -> str | None:
    """The step where the probabilities, added up by name, pass `draw`, uniform in [0, 1)."""
    chosen = None
    for model in sorted(probabilities):
        chosen = model
        draw -= probabilities[model]
        if draw < 0:
            break
    return chosen
