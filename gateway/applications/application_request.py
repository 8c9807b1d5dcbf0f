"""A request to an application while it is planned, and what the plan gave it. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.selection.window import Assignment
from gateway.sneakpeek.client import LookResult
from registry.domain.application import ApplicationSpec
from registry.domain.model import ModelName


@dataclass(frozen=True, slots=True)
class ApplicationRequest:
    """Times in seconds; the arrival on the registry's clock, the deadline from it."""

    id: str
    application: ApplicationSpec
    arrival_s: float
    deadline_s: float
    policy: str
    look: LookResult

    @property
    def evidence(self) -> tuple[float, ...] | None:
        """The labels of the nearest examples, summed over the request's rows."""
        if self.look.seen is None or not self.look.seen.rows:
            return None
        return tuple(map(sum, zip(*self.look.seen.rows, strict=True)))

    @property
    def may_short_circuit(self) -> bool:
        seen = self.look.seen
        return seen is not None and bool(seen.rows) and seen.is_answerable


@dataclass(frozen=True, slots=True)
class Selection:
    """How a request is served, and what is expected of it."""

    assignment: Assignment
    policy: str
    variant: ModelName | None
    """None: the look at the data answers."""
    pod: str | None = None
    """The planned one; None: by the variant's routing policy."""
    pod_until_s: float | None = None
    """Deadline for the pod's queue, on the registry's clock: in planned order."""
    alpha: tuple[float, ...] = ()
    """The prior's weights, where the look answers."""
