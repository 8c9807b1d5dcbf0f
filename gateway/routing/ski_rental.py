"""What each model's requests have lost for want of another copy, until a load of it is begun.

The rule of rent or buy (Karlin, Manasse, McGeoch, Owicki 1990, "Competitive randomized algorithms
for non-uniform problems"): who queues or shares a device pays a little each time, a load costs much
once. When as much was lost as a load costs, `auto` begins one; loads begun so never cost more than
was lost without them. A loss counts only once a load would have ended since: what is over by then,
a load would not have helped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.routing.decision import Reject, SendTo
from registry.domain.reservation import LoadMode

if TYPE_CHECKING:
    from gateway.routing.decision import ColdStartLoss, Decision
    from registry.domain.model import ModelName

KEPT: Final = 4096
"""Models; the one that has been kept for longest goes first."""


@dataclass(slots=True)
class _ModelCredit:
    """Seconds lost: those that count, and those of the two latest spans, each a load's time."""

    since_s: float
    """When the latest span began."""
    span_s: float
    counted_s: float = 0.0
    before_s: float = 0.0
    latest_s: float = 0.0

    def pass_time(self, now_s: float) -> None:
        """Count what is a span old."""
        passed_s = now_s - self.since_s
        if passed_s < self.span_s:
            return
        self.counted_s += self.before_s
        self.before_s, self.latest_s = self.latest_s, 0.0
        if passed_s >= 2 * self.span_s:
            self.counted_s += self.before_s
            self.before_s = 0.0
        self.since_s = now_s


class ColdStartCredit:
    """By model, of the requests of one gateway. Times in seconds, the clock is passed in."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._by_model: dict[ModelName, _ModelCredit] = {}

    def counted_s(self, model: ModelName, now_s: float) -> float:
        """What counts now against the model's next load."""
        lost = self._by_model.get(model)
        if lost is None:
            return 0.0
        lost.pass_time(now_s)
        return lost.counted_s

    def note(self, model: ModelName, decision: Decision, now_s: float) -> None:
        """Add what a newcomer loses by this decision; one that loads begins anew."""
        self.settle(model, decision)
        if not isinstance(decision, Reject) and decision.loss is not None:
            self._add(model, decision.loss, now_s)

    def settle(self, model: ModelName, decision: Decision) -> None:
        """Forget the losses of a model that is loaded now."""
        if self._by_model and isinstance(decision, SendTo) and decision.mode is LoadMode.LOAD:
            self._by_model.pop(model, None)

    def _add(self, model: ModelName, loss: ColdStartLoss, now_s: float) -> None:
        lost = self._by_model.get(model)
        if lost is None:
            if len(self._by_model) >= self._kept:
                del self._by_model[next(iter(self._by_model))]
            lost = self._by_model[model] = _ModelCredit(now_s, loss.load_s)
        lost.span_s = loss.load_s
        lost.pass_time(now_s)
        lost.latest_s += loss.seconds
