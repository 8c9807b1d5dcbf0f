"""The retry budget, which keeps a failing pool from getting many more requests than clients send.

Source: the token form of Finagle's `RetryBudget`: every request earns a part of a retry.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RetryBudget:
    """Tokens; a retry costs one."""

    earned_per_request: float = 0.2
    max_tokens: float = 100.0
    tokens: float = 100.0

    def earn(self) -> None:
        if self.tokens < self.max_tokens:
            self.tokens = min(self.max_tokens, self.tokens + self.earned_per_request)

    def spend(self) -> bool:
        """Take a token; False if none is left."""
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True
