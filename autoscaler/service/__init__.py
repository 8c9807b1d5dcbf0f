"""The running autoscaler: reads the registry, forecasts, plans, acts."""
