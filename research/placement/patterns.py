"""Sets of models with batch sizes that fit together on one accelerator."""

from collections.abc import Mapping, Sequence
from math import ceil, floor
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from autoscaler.placement.problem import FITS_PCT, WHOLE_PCT

_STEPS_PER_PCT: Final = 2
_VISITS_PER_PATTERN: Final = 40
_WEIGHTS: Final = (0.0, 0.3, 0.5, 0.7, 0.85, 1.0)
"""Of compute, beside memory, in bounds of a pattern's value."""
_SIZE: Final = int(WHOLE_PCT) * _STEPS_PER_PCT + 1


class Item(NamedTuple):
    """A model with one of its batch sizes, and what one replica of it needs."""

    model: str
    batch_size: int
    throughput_rps: float
    compute_pct: float
    memory_pct: float


Pattern: TypeAlias = tuple[Item, ...]
"""Each model at most once, by name; compute and memory at most 100 %."""


class TooManyPatterns(Exception):
    """There are more maximal patterns than a program can hold."""


def patterns_of(items: Sequence[Item], limit: int) -> tuple[Pattern, ...]:
    """All patterns to which no further item can be added; raises TooManyPatterns."""
    by_model = _by_model(items)
    found: list[Pattern] = []
    visited = 0

    def extend(
        at: int, chosen: Pattern, skipped: tuple[int, ...], compute: float, memory: float
    ) -> None:
        nonlocal visited
        visited += 1
        if visited > _VISITS_PER_PATTERN * limit:
            raise TooManyPatterns
        if at == len(by_model):
            if chosen and not any(
                compute + item.compute_pct <= FITS_PCT and memory + item.memory_pct <= FITS_PCT
                for left_out in skipped
                for item in by_model[left_out]
            ):
                found.append(chosen)
                if len(found) > limit:
                    raise TooManyPatterns
            return
        for item in by_model[at]:
            if compute + item.compute_pct <= FITS_PCT and memory + item.memory_pct <= FITS_PCT:
                extend(
                    at + 1,
                    (*chosen, item),
                    skipped,
                    compute + item.compute_pct,
                    memory + item.memory_pct,
                )
        extend(at + 1, chosen, (*skipped, at), compute, memory)

    extend(0, (), (), 0.0, 0.0)
    return tuple(found)


def _by_model(items: Sequence[Item]) -> list[list[Item]]:
    models = sorted({each.model for each in items})
    return [[each for each in items if each.model == model] for model in models]


def partition(items: Sequence[Item], values: Mapping[Item, float]) -> list[Pattern]:
    """Patterns of high value, each of models that the ones before do not hold.

    Greedy, by value per larger need.
    """
    ordered = sorted(
        (each for each in items if values[each] > 0),
        key=lambda each: (-values[each] / max(each.compute_pct, each.memory_pct, 1e-9), each),
    )
    found = []
    held: set[str] = set()
    while ordered:
        chosen: dict[str, Item] = {}
        compute = memory = 0.0
        for item in ordered:
            if (
                item.model not in chosen
                and compute + item.compute_pct <= FITS_PCT
                and memory + item.memory_pct <= FITS_PCT
            ):
                chosen[item.model] = item
                compute, memory = compute + item.compute_pct, memory + item.memory_pct
        held |= chosen.keys()
        found.append(tuple(sorted(chosen.values())))
        ordered = [each for each in ordered if each.model not in held]
    return found


def best_pattern(items: Sequence[Item], values: Mapping[Item, float]) -> Pattern:
    """A pattern of high value: a knapsack over compute, rounded up; memory is kept by leaving out.

    Dynamic programming over models and half percents.
    """
    by_model = _by_model([each for each in items if values[each] > 0])
    best = np.zeros(_SIZE)
    choices = []
    for options in by_model:
        after, choice = best.copy(), np.full(_SIZE, -1)
        for number, item in enumerate(options):
            need = ceil(item.compute_pct * _STEPS_PER_PCT - 1e-9)
            if need < _SIZE:
                offered = best[: _SIZE - need] + values[item]
                better = offered > after[need:] + 1e-12
                after[need:][better] = offered[better]
                choice[need:][better] = number
        choices.append(choice)
        best = after
    at, chosen = _SIZE - 1, []
    for options, choice in zip(reversed(by_model), reversed(choices), strict=True):
        if choice[at] >= 0:
            item = options[choice[at]]
            chosen.append(item)
            at -= ceil(item.compute_pct * _STEPS_PER_PCT - 1e-9)
    chosen.sort(key=lambda each: (values[each], each))
    while sum(each.memory_pct for each in chosen) > FITS_PCT:
        chosen.pop(0)
    return tuple(sorted(chosen))


def value_bound(items: Sequence[Item], values: Mapping[Item, float]) -> float:
    """No pattern has a higher value: the best knapsack over a mean of compute and memory.

    Needs are rounded down; the smallest bound over several means is taken.
    """
    by_model = _by_model([each for each in items if values[each] > 0])
    return min(_knapsack_bound(by_model, values, weight) for weight in _WEIGHTS)


def _knapsack_bound(
    by_model: Sequence[Sequence[Item]], values: Mapping[Item, float], compute_weight: float
) -> float:
    best = np.zeros(_SIZE)
    for options in by_model:
        after = best.copy()
        for item in options:
            mean = compute_weight * item.compute_pct + (1 - compute_weight) * item.memory_pct
            need = floor(mean * _STEPS_PER_PCT + 1e-9)
            np.maximum(after[need:], best[: _SIZE - need] + values[item], out=after[need:])
        best = after
    return float(best[-1])
