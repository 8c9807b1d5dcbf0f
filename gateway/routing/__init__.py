"""Routing policies and the data they decide by. Pure."""
