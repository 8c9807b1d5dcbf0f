"""Pools of pods: their number, draining, and which pods go first."""
