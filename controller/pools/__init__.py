"""Pools of pods: number of pods, draining, order of deletion."""
