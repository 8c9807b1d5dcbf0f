"""Canaries: models that take a share of the requests to another model of their namespace.

A canary is declared like any model and has its own weights, policy, copies and status; two
annotations make it a canary. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from registry.domain.cluster import ClusterState
from registry.domain.model import ModelName, ModelRecord, ModelSpec

TOTAL_PERCENT = 100
Found: TypeAlias = "dict[ModelName, tuple[Canary, ...]]"
"""Canaries by stable model."""


@dataclass(frozen=True, slots=True)
class Canary:
    """A model that takes `percent` of the requests to another one."""

    model: ModelName
    percent: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """Which requests a model serves, as declared."""

    percent: int
    """Of the requests to `canary_of`, or else to itself."""
    canary_of: ModelName | None
    canaries: tuple[Canary, ...]
    """That take the other requests to it."""
    problem: str = ""
    """Why a canary gets fewer requests than its annotations seem to say; empty: it does not."""

    @property
    def is_split(self) -> bool:
        """Whether another model has a part in the requests."""
        return self.canary_of is not None or bool(self.canaries)


def traffic_of(spec: ModelSpec, models: Mapping[ModelName, ModelRecord], found: Found) -> Traffic:
    """`found`: of `find_canaries` of these models."""
    mine = found.get(spec.name, ())
    if spec.policy.canary_of is None:
        return Traffic(TOTAL_PERCENT - sum(each.percent for each in mine), None, mine)
    stable = ModelName(spec.name.namespace, spec.policy.canary_of)
    if stable not in models:
        return Traffic(0, stable, mine, f"{stable} does not exist")
    percent = sum(each.percent for each in found.get(stable, ()) if each.model == spec.name)
    problem = ""
    if spec.policy.canary_percent == 0:
        problem = "canary-percent is 0"
    elif percent < spec.policy.canary_percent:
        problem = f"{percent} % is what other canaries of {stable} leave"
    return Traffic(percent, stable, mine, problem)


class Canaries:
    """The canaries among a pool's models, recomputed when models change."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._models_version = -1
        self._found: Found = {}

    def of(self, name: ModelName) -> tuple[Canary, ...]:
        """A model's canaries in order of name; their shares sum to at most 100 %."""
        if self._models_version != self._state.models_version:
            self._models_version = self._state.models_version
            self._found = find_canaries(self._state.models.values())
        return self._found.get(name, ())

    def traffic(self, spec: ModelSpec) -> Traffic:
        self.of(spec.name)  # up to date
        return traffic_of(spec, self._state.models, self._found)


def find_canaries(records: Iterable[ModelRecord]) -> Found:
    """Canaries by stable model. Shares above 100 % in total are cut from the last by name."""
    found: Found = {}
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
