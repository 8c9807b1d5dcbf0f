"""Maximal sets of models with batch sizes that fit together on one accelerator."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from autoscaler.placement.planners.problem import FITS_PCT

if TYPE_CHECKING:
    from collections.abc import Sequence


class Item(NamedTuple):
    """A model with one of its batch sizes, and what one replica of it needs."""

    model: str
    batch_size: int
    throughput_rps: float
    compute_pct: float
    memory_pct: float


Pattern: TypeAlias = tuple[Item, ...]
"""Each model at most once; compute and memory at most 100 %."""


def patterns_of(items: Sequence[Item]) -> tuple[Pattern, ...]:
    """All patterns to which no further item can be added."""
    models = sorted({each.model for each in items})
    by_model = [[each for each in items if each.model == model] for model in models]
    found: list[Pattern] = []

    def extend(
        at: int, chosen: Pattern, skipped: tuple[int, ...], compute: float, memory: float
    ) -> None:
        if at == len(by_model):
            if not any(
                compute + item.compute_pct <= FITS_PCT and memory + item.memory_pct <= FITS_PCT
                for left_out in skipped
                for item in by_model[left_out]
            ):
                found.append(chosen)
            return
        for item in by_model[at]:
            if compute + item.compute_pct <= FITS_PCT and memory + item.memory_pct <= FITS_PCT:
                extend(
                    at + 1, (*chosen, item), skipped,
                    compute + item.compute_pct, memory + item.memory_pct,
                )  # fmt: skip
        extend(at + 1, chosen, (*skipped, at), compute, memory)

    extend(0, (), (), 0.0, 0.0)
    return tuple(pattern for pattern in found if pattern)
