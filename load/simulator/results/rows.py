"""What is noted of answered requests, column by column.

Lists of plain values: an object per request would have the garbage collector look at each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.routing.decision import Reason
    from registry.domain.model import ModelName, RoutingPolicy

NEVER_S: Final = -1.0
"""In place of the time at which a request was placed that no pod took."""


@dataclass(slots=True)
class Rows:
    """One entry per request in each column. Times in seconds of the run."""

    request_id: list[str] = field(default_factory=list)
    model: list[ModelName] = field(default_factory=list)
    policy: list[RoutingPolicy | None] = field(default_factory=list)
    arrival_s: list[float] = field(default_factory=list)
    placed_s: list[float] = field(default_factory=list)
    """When it was sent to its entry pod, or `NEVER_S`."""
    finished_s: list[float] = field(default_factory=list)
    status: list[int] = field(default_factory=list)
    reason: list[Reason | str | None] = field(default_factory=list)
    error: list[str | None] = field(default_factory=list)
    entry_pod: list[str | None] = field(default_factory=list)
    predict_pod: list[str | None] = field(default_factory=list)
    start: list[str | None] = field(default_factory=list)
    load_s: list[float] = field(default_factory=list)
    preprocess_s: list[float] = field(default_factory=list)
    infer_s: list[float] = field(default_factory=list)
    postprocess_s: list[float] = field(default_factory=list)
    input_size: list[int] = field(default_factory=list)
    output_size: list[int] = field(default_factory=list)
    deadline_s: list[float | None] = field(default_factory=list)
    """From the arrival."""

    def clear(self) -> None:
        """Begin anew, with lists of its own."""
        self.__init__()  # type: ignore[misc]  # one owner, no subclass

    def __len__(self) -> int:
        return len(self.request_id)

    def add(
        self,
        *,
        request_id: str,
        model: ModelName,
        policy: RoutingPolicy | None,
        arrival_s: float,
        placed_s: float,
        finished_s: float,
        status: int,
        reason: Reason | str | None,
        error: str | None,
        entry_pod: str | None,
        predict_pod: str | None,
        start: str | None,
        load_s: float,
        preprocess_s: float,
        infer_s: float,
        postprocess_s: float,
        input_size: int,
        output_size: int,
        deadline_s: float | None,
    ) -> None:
        """One more request was answered."""
        self.request_id.append(request_id)
        self.model.append(model)
        self.policy.append(policy)
        self.arrival_s.append(arrival_s)
        self.placed_s.append(placed_s)
        self.finished_s.append(finished_s)
        self.status.append(status)
        self.reason.append(reason)
        self.error.append(error)
        self.entry_pod.append(entry_pod)
        self.predict_pod.append(predict_pod)
        self.start.append(start)
        self.load_s.append(load_s)
        self.preprocess_s.append(preprocess_s)
        self.infer_s.append(infer_s)
        self.postprocess_s.append(postprocess_s)
        self.input_size.append(input_size)
        self.output_size.append(output_size)
        self.deadline_s.append(deadline_s)
