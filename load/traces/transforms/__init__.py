"""Transformations of a trace: fewer arrivals, another rate, other models, sizes and deadlines."""
