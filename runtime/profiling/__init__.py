"""Profiles: what a model costs by batch size, taken on request and refined in service."""
