"""`experiment`: run an experiment of the documentation, simulated and live."""
