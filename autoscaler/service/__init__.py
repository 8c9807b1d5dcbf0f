"""The running autoscaler: reads registry and counts, forecasts, plans, acts."""
