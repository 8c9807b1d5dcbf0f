"""Experiments with pools that grow and shrink: burst, spike."""
