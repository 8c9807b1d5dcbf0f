"""Forecasting, loading and scaling policies, and the processes that carry them out."""
