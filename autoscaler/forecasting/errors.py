"""Errors of forecasts: invalid input."""

from __future__ import annotations


class ForecastingError(ValueError):
    """Root: the input is invalid; the text has the value and what is allowed."""


class BadCounts(ForecastingError):
    """Counts that are negative, not finite or of the wrong shape."""


class BadHorizon(ForecastingError):
    """Windows or probabilities outside the allowed range."""


class BadArrivalTrace(ForecastingError):
    """A file that does not hold arrivals per minute."""
