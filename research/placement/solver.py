"""Mixed-integer programs, solved by HiGHS: one thread, a fixed seed, limited by nodes, not by time.

Equal programs have equal solutions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Final

import highspy
import numpy as np

_SLACK: Final = 1e-6
"""How much of a kept sum may be lost: the solver's tolerance."""


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
