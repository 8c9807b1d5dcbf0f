"""A request to an application while it is planned, and what the plan gave it. Values only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gateway.applications.live_window import Variants
from gateway.selection.window import Assignment, WindowRequest
from gateway.sneakpeek.client import LookOutcome, LookResult
from registry.domain.application import ApplicationSpec
from registry.domain.model import ModelName

_UNSEEN: Final = LookResult(LookOutcome.UNAVAILABLE)


@dataclass(slots=True, eq=False)
class ApplicationRequest:
    """Times in seconds; the arrival on the registry's clock, the deadline from it."""

    id: str
    application: ApplicationSpec
    arrival_s: float
    deadline_s: float
    policy: str
    look: LookResult = _UNSEEN
    on_selected: Callable[[Selection], object] = lambda _: None
    variants: Variants = field(init=False)
    """Set when it joins a window."""
    is_over: bool = False
    """It has its selection, or nobody waits for it."""

    def in_window(self, id_: str) -> WindowRequest:
        """With the labels of the nearest examples, summed over the request's rows."""
        seen = self.look.seen
        rows = () if seen is None else seen.rows
        return WindowRequest(
            id_, str(self.application.name), self.arrival_s, self.deadline_s,
            tuple(map(sum, zip(*rows, strict=True))) if rows else None,
            bool(rows) and seen is not None and seen.is_answerable,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Selection:
    """How a request is served, and what is expected of it."""

    assignment: Assignment
    policy: str
    variant: ModelName | None
    """None: the look at the data answers."""
    pod_until_s: float | None = None
    """Deadline for the planned pod's queue, on the registry's clock: in planned order."""
    alpha: tuple[float, ...] = ()
    """The prior's weights, where the look answers."""

    @property
    def pod(self) -> str | None:
        """The planned one; None: by the variant's routing policy."""
        return self.assignment.worker or None
