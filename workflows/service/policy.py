"""The scheduling policies of workflows, as flags and header values."""

from __future__ import annotations

from enum import StrEnum


class SchedulingPolicy(StrEnum):
    """Who places a run's steps, and when."""

    SPECULATIVE = "speculative"
    """All steps of the run together, those that are predicted included."""
    GREEDY = "greedy"
    """Each step when its inputs are there, on the pod where it ends earliest."""
    ROUND_ROBIN = "round-robin"
    """Each step on the next pod in turn."""
    AUTO = "auto"
    """Each step is an ordinary request, which the gateway routes."""
