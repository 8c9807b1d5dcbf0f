"""Forecasting, loading, placement and scaling policies, and what carries them out."""
