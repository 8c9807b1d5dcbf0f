"""`simulate`: run a trace through a simulated cluster, once per policy and swept value."""
