"""Kubernetes controller: InferenceServices to the registry, registry state to their status."""
