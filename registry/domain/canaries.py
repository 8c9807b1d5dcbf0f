"""Canaries: models that take a share of the requests to another model of their namespace.

A canary is declared like any model and has its own weights, policy, copies and status; two
annotations make it a canary. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from registry.domain.model import ModelName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from registry.domain.cluster import ClusterState
    from registry.domain.model import ModelRecord

TOTAL_PERCENT = 100


@dataclass(frozen=True, slots=True)
class Canary:
    """A model that takes `percent` of the requests to another one."""

    model: ModelName
    percent: int


class Canaries:
    """The canaries among a pool's models, recomputed when models change."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._models_version = -1
        self._found: dict[ModelName, tuple[Canary, ...]] = {}

    def of(self, name: ModelName) -> tuple[Canary, ...]:
        """A model's canaries in order of name; their shares sum to at most 100 %."""
        if self._models_version != self._state.models_version:
            self._models_version = self._state.models_version
            self._found = find_canaries(self._state.models.values())
        return self._found.get(name, ())


def find_canaries(records: Iterable[ModelRecord]) -> dict[ModelName, tuple[Canary, ...]]:
    """Canaries by stable model. Shares above 100 % in total are cut from the last by name."""
    found: dict[ModelName, tuple[Canary, ...]] = {}
    declared = sorted(
        (record.spec for record in records if record.spec.policy.canary_of is not None),
        key=lambda spec: spec.name,
    )
    for spec in declared:
        stable = ModelName(spec.name.namespace, spec.policy.canary_of or "")
        before = found.get(stable, ())
        left = TOTAL_PERCENT - sum(each.percent for each in before)
        percent = min(spec.policy.canary_percent, left)
        if percent > 0:
            found[stable] = (*before, Canary(spec.name, percent))
    return found
