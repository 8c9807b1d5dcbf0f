"""Public traces, as formats of the load generator and the simulator."""
