"""One model's continuous batch: its sequences, the requests waiting to join, iteration times.

Iteration-level scheduling, Yu et al. 2022 ("Orca", OSDI), section 3, as in `runtime.generation`:
between two iterations, complete sequences leave and requests join in order of arrival. The module
`iterations` decides when an iteration runs.
"""

from collections import deque
from dataclasses import dataclass
from math import inf

from load.simulator.cluster.plan import ModelPlan
from load.simulator.pods.simulated_request import SimulatedRequest
from runtime.device.queue import MAX_SEQUENCES


@dataclass(eq=False, slots=True)
class _Sequence:
    request: SimulatedRequest
    last: int
    """Number of the iteration that generates its last token."""


class ContinuousBatch:
    """The requests of one model at one device; each row of a request is a sequence of its own."""

    __slots__ = ("_iterations", "_max_rows", "_rows", "_sequences", "_waiting", "plan")

    def __init__(self, plan: ModelPlan) -> None:
        self.plan = plan
        self._max_rows = min(plan.spec.policy.max_batch_size or MAX_SEQUENCES, MAX_SEQUENCES)
        self._waiting: deque[SimulatedRequest] = deque()
        self._sequences: list[_Sequence] = []
        self._rows = 0
        self._iterations = 0

    @property
    def is_empty(self) -> bool:
        """True if no request is in the batch or waits to join."""
        return not self._sequences and not self._waiting

    @property
    def can_grow(self) -> bool:
        """True if the first waiting request can join at the next iteration."""
        return bool(self._waiting) and (
            not self._sequences or self._rows + self._waiting[0].rows <= self._max_rows
        )

    def add(self, request: SimulatedRequest) -> None:
        self._waiting.append(request)

    def admit(self) -> tuple[int, list[SimulatedRequest]]:
        """Add waiting requests; returns their rows, and the requests that had already ended."""
        before, late = self._rows, []
        while self.can_grow:
            request = self._waiting.popleft()
            if request.is_over:
                late.append(request)
                continue
            last = self._iterations + max(1, request.output_size)
            self._sequences.append(_Sequence(request, last))
            self._rows += request.rows
        return self._rows - before, late

    def iteration_s(self, joined: int = 0) -> float:
        """Time of an iteration at speed 1, with the prompts of the rows that have just joined."""
        prompts_s = self.plan.infer_s(joined) if joined else 0.0
        return prompts_s + self.plan.token_s(self._rows)

    def iterations_left(self) -> int:
        """Iterations until the first sequence has all its tokens."""
        return min(each.last for each in self._sequences) - self._iterations

    def deadline_s(self) -> float:
        """The earliest deadline in the batch; infinity if there is none."""
        deadlines_s = [each.request.arrival.deadline_s for each in self._sequences]
        return min((each for each in deadlines_s if each is not None), default=inf)

    def advance(self, iterations: int) -> tuple[list[SimulatedRequest], list[SimulatedRequest]]:
        """Run iterations; returns the complete requests, and those that had already ended."""
        self._iterations += iterations
        done, over, stay = [], [], []
        for sequence in self._sequences:
            request = sequence.request
            if sequence.last <= self._iterations:
                done.append(request)
            elif request.is_over:
                over.append(request)
            else:
                stay.append(sequence)
        if len(stay) < len(self._sequences):
            self._sequences = stay
            self._rows = sum(each.request.rows for each in stay)
        return done, over
