"""Admission webhooks: validation, defaults, certificates."""
