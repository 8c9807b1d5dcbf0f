"""Loads: one per model at a time, into a budget, with those who must leave for it."""
