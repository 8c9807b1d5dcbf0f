"""Tests of the registry: declarations, stored forms, scripts, the watched copy."""
