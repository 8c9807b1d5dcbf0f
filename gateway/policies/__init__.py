"""Routing policies: pure functions of a request and a view of the cluster."""
