"""Routing policies, one per file, and what they decide by. Pure."""
