"""Calls of the pod to the registry, and its copy of the declared models."""
