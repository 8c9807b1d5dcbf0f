"""On which device each step of a run is placed, and in which order. Pure."""
