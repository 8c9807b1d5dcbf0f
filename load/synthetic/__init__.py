"""Seeded arrival processes: rate over time, burstiness and popularity of models."""
