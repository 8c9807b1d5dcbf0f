"""Ski rental: time that each model's requests lost for lack of another copy, credited to a load.

Karlin, Manasse, McGeoch, Owicki 1990, "Competitive randomized algorithms for non-uniform problems":
queueing or sharing a device costs a little each time, a load costs much once. When the losses reach
the cost of a load, `auto` starts one; such loads never cost more than was lost without them. A loss
counts only once it is one load time old, since no load could have finished sooner to avoid it.
A request that is rejected since the model's load would take too long loses the time that it had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.routing.decision import SendTo
from registry.domain.reservation import LoadMode

if TYPE_CHECKING:
    from gateway.routing.decision import ColdStartLoss, Decision
    from registry.domain.model import ModelName

MAX_MODELS: Final = 4096
"""Above this number, the model that was recorded first is dropped."""


@dataclass(slots=True)
class _ModelCredit:
    """Seconds lost: those that count, and those of the two latest spans of one load time each."""

    started_s: float
    """Start of the latest span."""
    span_s: float
    counted_s: float = 0.0
    previous_s: float = 0.0
    latest_s: float = 0.0

    def advance(self, now_s: float) -> None:
        """Count losses that are at least one span old; a clock set back begins a span."""
        passed_s = now_s - self.started_s
        if passed_s < 0:
            self.started_s = now_s
        if passed_s < self.span_s:
            return
        self.counted_s += self.previous_s
        self.previous_s, self.latest_s = self.latest_s, 0.0
        if passed_s >= 2 * self.span_s:
            self.counted_s += self.previous_s
            self.previous_s = 0.0
        self.started_s = now_s


class ColdStartCredit:
    """Losses of one gateway's requests by model. Times in seconds; callers pass the time in."""

    def __init__(self, max_models: int = MAX_MODELS) -> None:
        self._max_models = max_models
        self.by_model: dict[ModelName, _ModelCredit] = {}
        """Where it is empty, no model has credit."""

    def counted_s(self, model: ModelName, now_s: float) -> float:
        """The model's credit towards its next load."""
        credit = self.by_model.get(model)
        if credit is None:
            return 0.0
        credit.advance(now_s)
        return credit.counted_s

    def record(self, model: ModelName, decision: Decision, now_s: float) -> None:
        """Add what a new request loses by this decision, at least; a load resets the credit."""
        self.settle(model, decision)
        if decision.loss is not None:
            self._add(model, decision.loss, now_s)

    def settle(self, model: ModelName, decision: Decision) -> None:
        """Reset the credit if the decision is a load."""
        if self.by_model and isinstance(decision, SendTo) and decision.mode is LoadMode.LOAD:
            self.by_model.pop(model, None)

    def _add(self, model: ModelName, loss: ColdStartLoss, now_s: float) -> None:
        credit = self.by_model.get(model)
        if credit is None:
            if len(self.by_model) >= self._max_models:
                del self.by_model[next(iter(self.by_model))]
            credit = self.by_model[model] = _ModelCredit(now_s, loss.load_s)
        credit.span_s = loss.load_s
        credit.advance(now_s)
        credit.latest_s += loss.seconds
