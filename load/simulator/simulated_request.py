"""One request on its way through the simulated cluster, and what is noted of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.routing.decision import Reason
    from gateway.routing.route_request import IncomingRequest
    from load.simulator.cluster.plan import ModelPlan
    from load.simulator.model_loading import SimulatedResident
    from load.simulator.pod import SimulatedPod
    from registry.domain.model import RoutingPolicy


class SimulatedRequest:
    """A request, mutable. A retry is another flight of the same arrival. Times in seconds."""

    __slots__ = (
        "arrival", "at_device_s", "entry", "held_since_s", "infer_s", "input_size", "is_over",
        "load_s", "output_size", "placed_s", "plan", "policy", "postprocess_s", "predict",
        "preprocess_s", "reason", "resident", "rows", "start", "token", "tries",
        "waited_from",
    )  # fmt: skip

    arrival: IncomingRequest
    plan: ModelPlan
    input_size: int
    output_size: int
    rows: int
    policy: RoutingPolicy | None
    reason: Reason | None
    entry: SimulatedPod
    predict: SimulatedPod
    resident: SimulatedResident
    start: str
    token: int
    tries: int
    waited_from: str | None
    placed_s: float
    """When it was sent to its entry pod; negative: it was not."""
    held_since_s: float
    at_device_s: float
    load_s: float
    preprocess_s: float
    infer_s: float
    postprocess_s: float
    is_over: bool
    """It was answered, or tried again: what still happens to it happens for nobody."""

    def __init__(
        self, arrival: IncomingRequest, plan: ModelPlan, input_size: int, output_size: int
    ) -> None:
        self.arrival = arrival
        self.plan = plan
        self.input_size = input_size
        self.output_size = output_size
        self.rows = 1 if plan.counts_tokens or input_size < 1 else input_size
        self.policy = None
        self.reason = None
        self.waited_from = None
        self.start = ""
        self.placed_s = -1.0
        self.token = self.tries = 0
        self.load_s = self.preprocess_s = self.infer_s = self.postprocess_s = 0.0
        self.is_over = False

    def again(self) -> SimulatedRequest:
        """The same request on its next try."""
        self.is_over = True
        another = SimulatedRequest(self.arrival, self.plan, self.input_size, self.output_size)
        another.waited_from = self.waited_from
        another.tries = self.tries + 1
        return another
