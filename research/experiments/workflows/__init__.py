"""Workflows of several models, simulated: after Zhang et al. 2025, section 8."""
