"""Serving systems in Python; each runs as a process."""
