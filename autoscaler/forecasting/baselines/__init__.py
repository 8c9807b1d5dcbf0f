"""Forecasting methods of the literature, to compare ours with."""
