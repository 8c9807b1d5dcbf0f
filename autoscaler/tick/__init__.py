"""One tick of the autoscaler, live and simulated: counts, forecasts, view, plan. All pure."""
