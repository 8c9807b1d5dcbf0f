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
    STATIC = "static"
    """Each step at a pod of the placement that the pods held longest."""
    REACTIVE = "reactive"
    """Each step at the shortest queue of its model's copies, which grow with their queues."""
    REACTIVE_ALONE = "reactive-alone"
    """The same, with one model per pod."""
    AUTO = "auto"
    """Each step is an ordinary request, which the gateway routes."""
