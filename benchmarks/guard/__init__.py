"""Costs of the hot paths as ratios to yardsticks, compared with `benchmarks/guard.json`."""
