"""Ski rental: time that each model's requests lost for lack of another copy, credited to a load.

Karlin, Manasse, McGeoch, Owicki 1990, "Competitive randomized algorithms for non-uniform problems":
queueing or sharing a device costs a little each time, a load costs much once. When the losses reach
the cost of a load, `auto` starts one; such loads never cost more than was lost without them. A loss
counts only once it is one load time old, since no load could have finished sooner to avoid it.
A request that is rejected since the model's load would take too long loses the time that it had.
"""

from dataclasses import dataclass

from gateway.routing.decision import ColdStartLoss


@dataclass(slots=True)
class ColdStartCredit:
    """Seconds that one model's requests at one gateway lost; callers pass the time in."""

    started_s: float
    """Start of the latest span."""
    span_s: float
    counted_s: float = 0.0
    """Credit towards the next load, as of the last `advance`."""
    previous_s: float = 0.0
    """Of the span before the latest; each is one load time long."""
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

    def add(self, loss: ColdStartLoss, now_s: float) -> None:
        self.span_s = loss.load_s
        self.advance(now_s)
        self.latest_s += loss.seconds
