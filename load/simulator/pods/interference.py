"""How much slower batches are beside others on a GPU. Pure; none of these is a planner's own.

`none`; `overlap`: while the multiprocessors used exceed 100 %, all are slower in proportion;
`table`: the measured factor of each neighbour; `igniter`: Xu et al. 2022, formulas 1-11.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from autoscaler.placement.planners.igniter_latency import Resident, predict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autoscaler.placement.planners.problem import KindCoefficients


class GpuBatch:
    """A running batch. Mutable."""

    __slots__ = ("begun_s", "ended", "left_s", "model", "rows", "slowdown", "updated_s", "used_pct")

    def __init__(
        self, model: str, rows: int, used_pct: float, alone_s: float, ended: Callable[[float], Any]
    ) -> None:
        """`used_pct`: of the multiprocessors; `ended` gets the time that the batch took."""
        self.model = model
        self.rows = rows
        self.used_pct = used_pct
        self.ended = ended
        self.left_s = alone_s
        """Time left if it ran alone."""
        self.slowdown = 1.0
        self.begun_s = 0.0
        self.updated_s = 0.0


Interference = Callable[["Sequence[GpuBatch]"], list[float]]
"""The slowdown of each running batch, at least 1."""

_WHOLE_PCT = 100.0


def none(running: Sequence[GpuBatch]) -> list[float]:
    return [1.0] * len(running)


def overlap(running: Sequence[GpuBatch]) -> list[float]:
    """Multiprocessors are divided in proportion to need."""
    used = sum([each.used_pct for each in running])
    return [max(1.0, used / _WHOLE_PCT)] * len(running)


def table(pairs: Mapping[tuple[str, str], float]) -> Interference:
    """`pairs`: the slowdown by (model, neighbour); those of several neighbours add up."""

    def slowdowns(running: Sequence[GpuBatch]) -> list[float]:
        return [
            1.0
            + sum(
                pairs.get((each.model, other.model), 1.0) - 1.0
                for other in running
                if other is not each
            )
            for each in running
        ]

    return slowdowns


def igniter(known: KindCoefficients) -> Interference:
    """Of models with coefficients; each batch has as much of the GPU as it uses."""

    def slowdowns(running: Sequence[GpuBatch]) -> list[float]:
        residents = [
            Resident(known.models[each.model], each.rows, each.used_pct) for each in running
        ]
        together = predict(residents, known.hardware)
        return [
            max(1.0, beside.gpu / predict([resident], known.hardware)[0].gpu)
            for resident, beside in zip(residents, together, strict=True)
        ]

    return slowdowns
