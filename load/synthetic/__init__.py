"""Seeded arrival processes: how often, how bursty, and for which models."""
