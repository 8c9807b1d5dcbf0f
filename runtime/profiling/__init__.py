"""Profiles: a model's latency and memory by batch size, measured on request and in service."""
