"""Experiments: one file each, run by name (`pilotlight experiment NAME`), told as tables."""
