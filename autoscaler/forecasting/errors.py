"""What can be wrong with what a forecast is asked for or given."""

from __future__ import annotations


class ForecastingError(ValueError):
    """Root: what was given breaks the contract; the text says what was seen and what is allowed."""


class BadCounts(ForecastingError):
    """Counts that no stream of arrivals can have: negative, not finite, of another shape."""


class BadHorizon(ForecastingError):
    """Windows or probabilities that cannot be forecast."""


class BadArrivalTrace(ForecastingError):
    """A file that is not arrivals per minute."""
