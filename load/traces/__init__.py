"""Traces in, arrivals out: formats, expansion, mapping to models, scaling, one way to name."""
