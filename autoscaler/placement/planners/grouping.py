"""Groups of at most four models whose needs of compute and memory balance (Elvinger 2024, 5.2.2).

Two rounds of a matching of minimum weight merge groups in pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

_ROUNDS: Final = 2
"""Groups of at most 2 ** rounds models."""
_SQUARE_WEIGHT: Final = 1e-9
"""Among matchings of equal weight the one with the largest sum of squares is taken."""


@dataclass(frozen=True, slots=True, order=True)
class ModelNeed:
    """The needs of a model, each summed over its batch sizes, in %."""

    model: str
    compute_pct: float
    memory_pct: float


def distance(needs: Sequence[ModelNeed]) -> float:
    """D = |sum of Creq - sum of Mreq|."""
    return abs(sum(each.compute_pct - each.memory_pct for each in needs))


def group_models(needs: Sequence[ModelNeed]) -> list[tuple[ModelNeed, ...]]:
    """The groups, by falling sum of needs: the order in which they are placed."""
    groups: list[tuple[ModelNeed, ...]] = [(each,) for each in sorted(needs)]
    for _ in range(_ROUNDS):
        groups = _merge_pairs(groups)
    return sorted(groups, key=lambda group: (-_total(group), group))


def _total(group: Sequence[ModelNeed]) -> float:
    return sum(each.compute_pct + each.memory_pct for each in group)


def _merge_pairs(groups: list[tuple[ModelNeed, ...]]) -> list[tuple[ModelNeed, ...]]:
    import networkx as nx  # 0.5 s that no other command has to wait for

    graph = nx.Graph()
    graph.add_nodes_from(range(len(groups)))
    for left, right in combinations(range(len(groups)), 2):
        apart = distance((*groups[left], *groups[right]))
        graph.add_edge(left, right, weight=apart - _SQUARE_WEIGHT * apart**2)
    matched = sorted(tuple(sorted(pair)) for pair in nx.min_weight_matching(graph))
    merged = [tuple(sorted(groups[left] + groups[right])) for left, right in matched]
    taken = {each for pair in matched for each in pair}
    merged += [group for at, group in enumerate(groups) if at not in taken]
    return sorted(merged)
