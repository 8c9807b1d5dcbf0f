"""One model's continuous batch: who makes tokens, who waits to, and how long an iteration takes.

Iteration-level scheduling, Yu et al. 2022 ("Orca", OSDI), section 3, as `runtime.generation` does
it: between two iterations those who have all their tokens leave, and others join in the order in
which they came. When its iterations run is `iterations`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from runtime.device.batch import MAX_SEQUENCES

if TYPE_CHECKING:
    from load.simulator.cluster.plan import ModelPlan
    from load.simulator.simulated_request import SimulatedRequest


@dataclass(eq=False, slots=True)
class _Sequence:
    flight: SimulatedRequest
    last: int
    """Number of the iteration that makes its last token."""


class ContinuousBatch:
    """The requests of one model at one device; each row of a request is a sequence of its own."""

    __slots__ = ("_iterations", "_members", "_most_rows", "_rows", "_waiting", "plan")

    def __init__(self, plan: ModelPlan) -> None:
        self.plan = plan
        self._most_rows = min(plan.spec.policy.max_batch_size or MAX_SEQUENCES, MAX_SEQUENCES)
        self._waiting: deque[SimulatedRequest] = deque()
        self._members: list[_Sequence] = []
        self._rows = 0
        self._iterations = 0

    @property
    def is_over(self) -> bool:
        """Whether nobody is left in it, and nobody waits."""
        return not self._members and not self._waiting

    @property
    def may_grow(self) -> bool:
        """Whether the first who waits can join at the next iteration."""
        return bool(self._waiting) and self._has_room(self._waiting[0])

    def _has_room(self, flight: SimulatedRequest) -> bool:
        return not self._members or self._rows + flight.rows <= self._most_rows

    def add(self, flight: SimulatedRequest) -> None:
        """One more waits to join."""
        self._waiting.append(flight)

    def admit(self) -> tuple[int, list[SimulatedRequest]]:
        """Let in whom there is room for: their rows, and those whose time was over before."""
        before, late = self._rows, []
        while self.may_grow:
            flight = self._waiting.popleft()
            if flight.is_over:
                late.append(flight)
                continue
            last = self._iterations + max(1, flight.output_size)
            self._members.append(_Sequence(flight, last))
            self._rows += flight.rows
        return self._rows - before, late

    def iteration_s(self, joined: int = 0) -> float:
        """Time of an iteration at speed 1; its prompts come first, where rows have just joined."""
        prompts_s = self.plan.infer_s(joined) if joined else 0.0
        return prompts_s + self.plan.token_s(self._rows)

    def iterations_left(self) -> int:
        """Iterations until the first of them has all its tokens."""
        return min(member.last for member in self._members) - self._iterations

    def deadline_s(self) -> float:
        """The earliest deadline of those in the batch; infinity where there is none."""
        deadlines_s = [member.flight.arrival.deadline_s for member in self._members]
        return min((each for each in deadlines_s if each is not None), default=inf)

    def advance(self, iterations: int) -> tuple[list[SimulatedRequest], list[SimulatedRequest]]:
        """Make tokens: who has all of them now, and who left for another reason."""
        self._iterations += iterations
        done, gone, stay = [], [], []
        for member in self._members:
            flight = member.flight
            if member.last <= self._iterations:
                done.append(flight)
            elif flight.is_over:
                gone.append(flight)
            else:
                stay.append(member)
        if len(stay) < len(self._members):
            self._members = stay
            self._rows = sum(member.flight.rows for member in stay)
        return done, gone
