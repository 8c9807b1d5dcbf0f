"""Fidelity of the simulator: latency percentiles of one trace, live and simulated, per policy."""
