"""Arrival traces: record batches, their order, seeds, file formats and transformations."""
