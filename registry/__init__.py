"""Shared state and shared value types: what is warm where, leases, reservations, annotations."""
