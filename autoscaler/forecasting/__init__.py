"""Forecasts of arrivals per model: pure functions over counts, and how good they were on traces."""
