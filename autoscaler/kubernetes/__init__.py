"""Pilotlight on a cluster: InferenceServices into the registry, its state into their status."""
