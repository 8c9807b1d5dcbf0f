"""Comparison of runs: measures, plots, and one HTML page that holds them."""
