"""Forecasts of arrivals per model: pure functions over counts, and a back-test on traces."""
