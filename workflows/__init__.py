"""Requests that run several models: prediction of their next steps, placement, execution."""
