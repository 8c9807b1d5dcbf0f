"""Forecasting methods of the literature, for comparison."""
