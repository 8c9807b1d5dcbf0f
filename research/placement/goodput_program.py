"""The mixed-integer program of `milp.py` for given patterns, and its relaxation.

Solved by HiGHS: one thread, a fixed seed, limited by nodes, not by time, so that equal programs
have equal solutions.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, isfinite
from typing import Final

import highspy
import numpy as np

from autoscaler.placement.problem import Workload
from registry.domain.records import PlacedReplica
from research.placement.patterns import Item, Pattern

_SLACK: Final = 1e-6
"""How much of a kept sum may be lost: the solver's tolerance."""


_MAX_NODES: Final = 2_000
"""Of the search tree; then the best plan found is taken."""
_MAX_BATCH_SUM: Final = 1 << 16
"""Above the batches of all replicas together: a replica less is better than any smaller batch."""


@dataclass(frozen=True, slots=True)
class Solution:
    values: tuple[float, ...]
    """By variable."""
    value: float
    bound: float
    """No solution is better."""


class Program:
    """Variables from 0 to an upper bound, and sums of them that are bounded above."""

    def __init__(self) -> None:
        self._upper: list[float] = []
        self._gains: list[float] = []
        self._integer: list[bool] = []
        self._rows: list[tuple[float, list[tuple[int, float]]]] = []

    def variable(self, *, upper: float, gain: float = 0.0, is_integer: bool = False) -> int:
        """Add a variable; returns its number."""
        self._upper.append(upper)
        self._gains.append(gain)
        self._integer.append(is_integer)
        return len(self._upper) - 1

    def at_most(self, limit: float, terms: Sequence[tuple[int, float]]) -> int:
        """Add a constraint on the sum of coefficient times variable; returns its number."""
        self._rows.append((limit, list(terms)))
        return len(self._rows) - 1

    def relaxed(self) -> tuple[float, list[float]]:
        """The highest value with fractions allowed, and the price of each constraint."""
        solver = _quiet_solver(1, 0.0)
        model = self._model(None, None)
        model.integrality_ = []
        solver.passModel(model)
        solver.run()
        prices = [max(0.0, each) for each in solver.getSolution().row_dual]
        return float(solver.getInfo().objective_function_value), prices

    def maximise(
        self,
        gains: Mapping[int, float] | None = None,
        *,
        keep: tuple[Sequence[int], float] | None = None,
        start: Sequence[float] = (),
        max_nodes: int,
        gap_ratio: float = 0.0,
    ) -> Solution:
        """The best solution found; all variables at 0 is always one.

        `gains` replaces those of the variables; `keep`: variables whose sum stays at a value.
        """
        solver = _quiet_solver(max_nodes, gap_ratio)
        # HiGHS 1.15.1 calls worse solutions optimal with it, in 1 of 2,000 random problems of the
        # planner, and is no faster on table A.1's.
        solver.setOptionValue("presolve", "off")
        solver.passModel(self._model(gains, keep))
        if start:
            solution = highspy.HighsSolution()
            solution.col_value = list(start)
            solver.setSolution(solution)
        solver.run()
        values = tuple(solver.getSolution().col_value)
        info = solver.getInfo()
        if not values or not isfinite(info.objective_function_value):
            values = tuple(start) or (0.0,) * len(self._upper)
        used = self._gains if gains is None else [gains.get(at, 0.0) for at in range(len(values))]
        value = float(np.dot(used, values))
        bound = info.mip_dual_bound if isfinite(info.mip_dual_bound) else inf
        return Solution(values, value, max(value, bound))

    def _model(
        self, gains: Mapping[int, float] | None, keep: tuple[Sequence[int], float] | None
    ) -> highspy.HighsLp:
        size = len(self._upper)
        rows = list(self._rows)
        if keep is not None:
            rows.append((_SLACK - keep[1], [(each, -1.0) for each in keep[0]]))
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = size, len(rows)
        model.sense_ = highspy.ObjSense.kMaximize
        costs = self._gains if gains is None else [gains.get(at, 0.0) for at in range(size)]
        model.col_cost_ = np.array(costs, dtype=float)
        model.col_lower_ = np.zeros(size)
        model.col_upper_ = np.array(self._upper, dtype=float)
        model.row_lower_ = np.full(len(rows), -highspy.kHighsInf)
        model.row_upper_ = np.array([limit for limit, _ in rows], dtype=float)
        model.integrality_ = [
            highspy.HighsVarType.kInteger if each else highspy.HighsVarType.kContinuous
            for each in self._integer
        ]
        matrix = model.a_matrix_
        matrix.format_ = highspy.MatrixFormat.kRowwise
        matrix.num_col_, matrix.num_row_ = size, len(rows)
        matrix.start_ = np.cumsum([0, *(len(terms) for _, terms in rows)])
        matrix.index_ = np.array([at for _, terms in rows for at, _ in terms], dtype=np.int32)
        matrix.value_ = np.array([value for _, terms in rows for _, value in terms], dtype=float)
        return model


def _quiet_solver(max_nodes: int, gap_ratio: float) -> highspy.Highs:
    solver = highspy.Highs()  # type: ignore[no-untyped-call]  # no return type in its stub
    for name, value in (
        ("output_flag", False),
        ("threads", 1),
        ("random_seed", 0),
        ("mip_max_nodes", max_nodes),
        ("mip_rel_gap", gap_ratio),
        ("mip_abs_gap", 1e-6),
    ):
        solver.setOptionValue(name, value)
    return solver


@dataclass(frozen=True, slots=True)
class KindItems:
    """The accelerators of one kind, and what they can hold."""

    accelerators: tuple[str, ...]
    items: tuple[Item, ...]
    patterns: tuple[Pattern, ...]

    def items_of(self, model: str) -> list[Item]:
        return [each for each in self.items if each.model == model]


@dataclass(frozen=True, slots=True)
class SolvedProgram:
    replicas: tuple[PlacedReplica, ...]
    bound_rps: float


class GoodputProgram:
    """The program of one problem; variables are numbers of its columns."""

    def __init__(self, workloads: Sequence[Workload], kinds: Sequence[KindItems]) -> None:
        self._kinds = kinds
        self._program = Program()
        self._counts: list[dict[Item, int]] = [{} for _ in kinds]
        self._uses: list[list[int]] = []
        self._goodput: list[int] = []
        self._room: list[dict[Item, int]] = []
        """Constraints that a replica needs a place in a pattern."""
        self._sizes: list[int] = []
        """Constraints of the numbers of accelerators."""
        for each in workloads:
            self._add_model(each)
        for kind, counts in zip(kinds, self._counts, strict=True):
            self._uses.append(self._add_patterns(kind, counts))

    def _add_model(self, workload: Workload) -> None:
        """Variables of one model: y_mb, the goodput in batch b, and the counts of replicas."""
        chosen = []
        sizes = {item.batch_size for kind in self._kinds for item in kind.items_of(workload.model)}
        for size in sorted(sizes):
            y = self._program.variable(upper=1, is_integer=True)
            goodput = self._program.variable(upper=workload.rate_rps, gain=1.0)
            sized = self._add_counts(workload, size, y)
            served = [(goodput, 1.0), *((count, -item.throughput_rps) for item, count in sized)]
            self._program.at_most(0, served)
            self._program.at_most(0, [(goodput, 1.0), (y, -workload.rate_rps)])
            if len(self._kinds) == 1:
                [(item, count)] = sized
                self._tighten(workload, item, goodput, y, count)
            chosen.append(y)
            self._goodput.append(goodput)
        self._program.at_most(1, [(each, 1.0) for each in chosen])

    def _add_counts(self, workload: Workload, size: int, y: int) -> list[tuple[Item, int]]:
        """Replicas of one batch by kind; those beyond what carries the rate are never of use."""
        found = []
        for kind, counts in zip(self._kinds, self._counts, strict=True):
            for item in kind.items_of(workload.model):
                if item.batch_size == size:
                    fewest = ceil(workload.rate_rps / item.throughput_rps)
                    upper = min(len(kind.accelerators), fewest)
                    count = self._program.variable(upper=upper, is_integer=True)
                    self._program.at_most(0, [(count, 1.0), (y, -float(upper))])
                    counts[item] = count
                    found.append((item, count))
        return found

    def _tighten(self, workload: Workload, item: Item, goodput: int, y: int, count: int) -> None:
        """The line through the last two points of min(rate, T n): cuts no whole number off."""
        full = floor(workload.rate_rps / item.throughput_rps)
        rest = workload.rate_rps - full * item.throughput_rps
        start = full * (item.throughput_rps - rest)
        self._program.at_most(0, [(goodput, 1.0), (count, -rest), (y, -start)])

    def _add_patterns(self, kind: KindItems, counts: Mapping[Item, int]) -> list[int]:
        size = len(kind.accelerators)
        uses = [self._program.variable(upper=size, is_integer=True) for _ in kind.patterns]
        self._sizes.append(self._program.at_most(size, [(each, 1.0) for each in uses]))
        holders: dict[Item, list[int]] = {item: [] for item in kind.items}
        for pattern, use in zip(kind.patterns, uses, strict=True):
            for item in pattern:
                holders[item].append(use)
        self._room.append(
            {
                item: self._program.at_most(
                    0, [(count, 1.0), *((use, -1.0) for use in holders[item])]
                )
                for item, count in counts.items()
            }
        )
        return uses

    def relaxed(self) -> tuple[float, list[tuple[dict[Item, float], float]]]:
        """The relaxed value; by kind the price of a place for each item, and of an accelerator."""
        value, prices = self._program.relaxed()
        return value, [
            ({item: prices[row] for item, row in room.items()}, prices[size])
            for room, size in zip(self._room, self._sizes, strict=True)
        ]

    def solve(self) -> SolvedProgram:
        """The most goodput, then the cheapest plan with it."""
        first = self._program.maximise(max_nodes=_MAX_NODES)
        replicas = {
            column: -float(_MAX_BATCH_SUM + item.batch_size)
            for counts in self._counts
            for item, column in counts.items()
        }
        best = self._program.maximise(
            replicas, keep=(self._goodput, first.value), start=first.values, max_nodes=_MAX_NODES
        )
        return SolvedProgram(self._replicas(best.values), first.bound)

    def solve_roughly(self, *, gap_ratio: float) -> SolvedProgram:
        """At the root of the search tree, within so much of the bound."""
        found = self._program.maximise(max_nodes=1, gap_ratio=gap_ratio)
        return SolvedProgram(self._replicas(found.values), found.bound)

    def _replicas(self, values: Sequence[float]) -> tuple[PlacedReplica, ...]:
        replicas = []
        for kind, counts, uses in zip(self._kinds, self._counts, self._uses, strict=True):
            left = Counter({item: round(values[column]) for item, column in counts.items()})
            filled = [
                pattern
                for pattern, use in zip(kind.patterns, uses, strict=True)
                for _ in range(round(values[use]))
            ]
            for accelerator, pattern in zip(kind.accelerators, filled, strict=False):
                for item in pattern:
                    if left[item] > 0:
                        left[item] -= 1
                        replicas.append(PlacedReplica(item.model, accelerator, item.batch_size))
        return tuple(replicas)
