"""Trace specifications: their syntax, and the traces that they describe."""
