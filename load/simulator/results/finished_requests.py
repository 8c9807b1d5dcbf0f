"""Finished requests, column by column.

The columns are lists of plain values: one object per request would slow the garbage collector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.routing.decision import Reason
    from load.simulator.pods.simulated_request import SimulatedRequest
    from load.simulator.results.answer import Answer
    from registry.domain.application import SelectionPolicy
    from registry.domain.model import ModelName, RoutingPolicy


class FinishedRequests:
    """One entry per request in each column. Times in seconds of the run."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Start new lists; lists that a caller has taken keep their values."""
        self.request_id: list[str] = []
        self.model: list[ModelName] = []
        self.policy: list[RoutingPolicy | SelectionPolicy | None] = []
        self.arrival_s: list[float] = []
        self.placed_s: list[float] = []
        """Time at which the request was sent to its entry pod; negative if it was not sent."""
        self.finished_s: list[float] = []
        self.status: list[int] = []
        self.reason: list[Reason | str | None] = []
        self.error: list[str | None] = []
        self.entry_pod: list[str | None] = []
        self.predict_pod: list[str | None] = []
        self.start: list[str | None] = []
        self.load_s: list[float] = []
        self.preprocess_s: list[float] = []
        self.infer_s: list[float] = []
        self.postprocess_s: list[float] = []
        self.input_size: list[int] = []
        self.output_size: list[int] = []
        self.deadline_s: list[float | None] = []
        """Counted from the arrival."""
        self.answers: dict[int, Answer] = {}
        """Of requests to applications, by place in the columns."""

    def __len__(self) -> int:
        return len(self.request_id)

    def set_answer(self, answer: Answer) -> None:
        """Of the request that was added last, which was to an application."""
        self.model[-1] = answer.application
        self.answers[len(self.model) - 1] = answer

    def add(
        self,
        request: SimulatedRequest,
        *,
        finished_s: float,
        status: int,
        reason: Reason | str | None,
        error: str | None,
        deadline_s: float | None,
    ) -> None:
        arrival = request.arrival
        entry = predict = start = None
        if request.placed_s >= 0:
            entry, predict, start = request.entry.name, request.predict.name, request.start
            if start == "warm" and request.awaited_tier:
                start = request.awaited_tier
        self.request_id.append(arrival.id)
        self.model.append(arrival.model)
        self.policy.append(request.policy)
        self.arrival_s.append(arrival.arrival_s)
        self.placed_s.append(request.placed_s)
        self.finished_s.append(finished_s)
        self.status.append(status)
        self.reason.append(reason)
        self.error.append(error)
        self.entry_pod.append(entry)
        self.predict_pod.append(predict)
        self.start.append(start or None)
        self.load_s.append(request.load_s)
        self.preprocess_s.append(request.preprocess_s)
        self.infer_s.append(request.infer_s)
        self.postprocess_s.append(request.postprocess_s)
        self.input_size.append(request.input_size)
        self.output_size.append(request.output_size)
        self.deadline_s.append(deadline_s)
