"""Experiments on a real platform of this machine, for comparison with simulated runs."""
