"""Metrics, response headers, explanations and arrival counts of requests."""
