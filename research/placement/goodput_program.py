"""The mixed-integer program of `milp.py` for given patterns, and its relaxation."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Final

from autoscaler.placement.planners.problem import PlanParams, Workload
from registry.domain.placement import PlacedReplica
from research.placement.patterns import Item, Pattern
from research.placement.solver import Program

_MAX_BATCH_SUM: Final = 1 << 16
"""Above the batches of all replicas together: a replica less is better than any smaller batch."""


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

    def __init__(
        self, workloads: Sequence[Workload], kinds: Sequence[KindItems], params: PlanParams
    ) -> None:
        self._kinds = kinds
        self._params = params
        self._program = Program()
        self._counts: list[dict[Item, int]] = [{} for _ in kinds]
        self._uses: list[list[int]] = []
        self._goodput: list[int] = []
        self._room: list[dict[Item, int]] = []
        """Constraints that a replica needs a place in a pattern."""
        self._sizes: list[int] = []
        """Constraints of the numbers of accelerators."""
        accelerators = sum(len(kind.accelerators) for kind in kinds)
        for each in workloads:
            self._add_model(each, params.max_replicas.get(each.model, accelerators))
        for kind, counts in zip(kinds, self._counts, strict=True):
            self._uses.append(self._add_patterns(kind, counts))

    def _add_model(self, workload: Workload, most: int) -> None:
        """Variables of one model: y_mb, the goodput in batch b, and the counts of replicas."""
        chosen, counts = [], []
        sizes = {item.batch_size for kind in self._kinds for item in kind.items_of(workload.model)}
        for size in sorted(sizes):
            y = self._program.variable(upper=1, is_integer=True)
            goodput = self._program.variable(upper=workload.rate_rps, gain=1.0)
            sized = self._add_counts(workload, size, y)
            counts += [count for _, count in sized]
            served = [(goodput, 1.0), *((count, -item.throughput_rps) for item, count in sized)]
            self._program.at_most(0, served)
            self._program.at_most(0, [(goodput, 1.0), (y, -workload.rate_rps)])
            if len(self._kinds) == 1:
                [(item, count)] = sized
                self._tighten(workload, item, goodput, y, count)
            chosen.append(y)
            self._goodput.append(goodput)
        self._program.at_most(1, [(each, 1.0) for each in chosen])
        self._program.at_most(most, [(each, 1.0) for each in counts])

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
        first = self._program.maximise(
            max_nodes=self._params.max_nodes, gap_ratio=self._params.max_gap_ratio
        )
        if self._params.max_gap_ratio > 0:
            return SolvedProgram(self._replicas(first.values), first.bound)
        replicas = {
            column: -float(_MAX_BATCH_SUM + item.batch_size)
            for counts in self._counts
            for item, column in counts.items()
        }
        best = self._program.maximise(
            replicas,
            keep=(self._goodput, first.value),
            start=first.values,
            max_nodes=self._params.max_nodes,
        )
        return SolvedProgram(self._replicas(best.values), first.bound)

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
