"""Which steps a run is likely to take next, learned from the runs before it. Pure."""
