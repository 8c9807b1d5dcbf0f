"""One request of an application, while it runs, and its steps."""

from dataclasses import dataclass, field
from math import inf

from research.simulated_workflows.applications import WorkflowRequest


@dataclass(eq=False, slots=True)
class SimulatedStep:
    """One call of one request."""

    run: int
    number: int
    model: str
    device: int = -1
    ready_s: float | None = None
    """When its inputs are at its device; None: they are not all computed."""
    begun_s: float | None = None
    end_s: float | None = None


@dataclass(eq=False, slots=True)
class SimulatedRun:
    number: int
    request: WorkflowRequest
    arrival_s: float
    steps: list[SimulatedStep] = field(default_factory=list)
    """Those that the code has called."""
    plan: list[tuple[str, tuple[int, ...], int]] = field(default_factory=list)
    """Model, inputs and device by position."""
    ahead: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Device and planned start of the steps that are predicted, by position."""
    planned_s: float = -inf
    is_waiting_for_plan: bool = False
    end_s: float = 0.0

    @property
    def is_over(self) -> bool:
        return len(self.steps) == len(self.request.calls) and all(
            step.end_s is not None for step in self.steps
        )

    def inputs_of(self, step: SimulatedStep) -> list[SimulatedStep]:
        return [self.steps[each] for each in self.request.calls[step.number].inputs]
