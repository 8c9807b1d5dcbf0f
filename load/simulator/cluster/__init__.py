"""Simulated clusters as values, and as YAML."""
