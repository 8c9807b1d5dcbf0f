"""Where the labelled examples of a run are, and how responses are judged. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from registry.domain.application import Penalty


@dataclass(frozen=True, slots=True)
class ExampleRules:
    """Where an application's examples are, and how its responses are judged."""

    path: str
    output: str = "label"
    penalty: Penalty = Penalty.SIGMOID
    deadline_s: float | None = None
    """Of requests without one in the trace; None: lateness costs nothing."""
