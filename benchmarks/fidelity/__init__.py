"""How near the simulator comes to a live platform: latency percentiles of one trace, per policy."""
