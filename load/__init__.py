"""Load generation, simulation and experiments."""
