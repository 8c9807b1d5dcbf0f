"""The retry budget: a failing pool is not hit with more requests than it was sent.

Source: the token form of Finagle's `RetryBudget`: every request earns a part of a retry.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RetryBudget:
    """Tokens for retries; whole ones are spent."""

    earned_per_request: float = 0.2
    most: float = 100.0
    tokens: float = 100.0

    def earn(self) -> None:
        """A request came in."""
        if self.tokens < self.most:
            self.tokens = min(self.most, self.tokens + self.earned_per_request)

    def spend(self) -> bool:
        """Take the right to retry once; False if there is none."""
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True
