"""A request in the simulated cluster, and the interfaces of pods and gateway that handle it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from gateway.dispatch.pending_placement import PendingPlacement
from gateway.dispatch.retries import FailedAttempts
from gateway.routing.decision import Reason
from gateway.routing.route_request import IncomingRequest
from load.simulator.cluster.plan import ModelPlan, PodPlan
from load.simulator.pods.registry_agent import SimulatedRegistryAgent
from registry.domain.model import Tier

Work = Callable[[float, Callable[[Any], object], Any], None]
"""Calls the function with the last argument after work of so many seconds."""
BYTES_PER_ITEM: Final = 1024
"""Of a body: a request of one item is of the smallest size class."""


class SimulatedRequest(PendingPlacement):
    """One attempt of a request; mutable. A retry is another object with the same `arrival`."""

    plan: ModelPlan
    input_size: int
    output_size: int
    rows: int
    body_bytes: int
    reason: Reason | None
    entry: RequestPod
    predict: RequestPod
    start: str
    """The tier that its model was loaded from, or `warm`."""
    token: int
    """Token of the load claim that the gateway made for the request; 0: no claim."""
    failed: FailedAttempts | None
    """Earlier attempts of the request; None if this is the first."""
    begun: int
    """Pods that requests had lost when it was sent (`gateway.dispatch.retries`)."""
    placed_s: float
    """Time at which the request was sent to its entry pod; negative if it was not sent."""
    model_needed_s: float
    """When its predict pod began to wait for the model; negative before."""
    at_device_s: float
    first_token_s: float
    """Negative before, and without tokens."""
    cached_tokens: int
    """Of its prompt, which its predict pod had computed before."""
    load_s: float
    preprocess_s: float
    infer_s: float
    postprocess_s: float
    is_over: bool
    """The attempt has its response or was retried; its later events have no effect."""
    __slots__ = tuple(__annotations__)

    def __init__(
        self, arrival: IncomingRequest, plan: ModelPlan, input_size: int, output_size: int
    ) -> None:
        super().__init__(arrival)
        self.plan = plan
        self.input_size = input_size
        self.output_size = output_size
        self.body_bytes = BYTES_PER_ITEM * input_size
        self.rows = 1 if plan.counts_tokens or input_size < 1 else input_size
        self.reason = None
        self.start = ""
        self.placed_s = self.model_needed_s = self.first_token_s = -1.0
        self.begun = self.cached_tokens = 0
        self.failed = None
        self.token = 0
        self.load_s = self.preprocess_s = self.infer_s = self.postprocess_s = 0.0
        self.is_over = False

    def retry(self) -> SimulatedRequest:
        """End this attempt; returns the next one."""
        self.is_over = True
        another = SimulatedRequest(self.arrival, self.plan, self.input_size, self.output_size)
        another.awaited_tier = self.awaited_tier
        another.failed = self.failed
        return another


class RequestPod(Protocol):
    """A pod as the gateway and other pods call it: `pod.SimulatedPod`."""

    name: str
    plan: PodPlan
    agent: SimulatedRegistryAgent
    respond: Callable[[SimulatedRequest], None]
    """Send the response from this entry pod to the gateway."""
    work: Work

    @property
    def is_loading(self) -> bool:
        """True if a load to the device is planned or running."""

    def take(self, request: SimulatedRequest) -> None:
        """As the entry pod: start a request that the gateway has just sent."""

    def take_inference(self, request: SimulatedRequest) -> None:
        """As the predict pod: start the inference of a request that entered at another pod."""


class PodListener(Protocol):
    """Callbacks from pods, for the gateway."""

    def on_change(self) -> None:
        """Capacity or load state changed: queued requests may be dispatched now."""

    def on_response(self, request: SimulatedRequest) -> None: ...
    def on_error(self, request: SimulatedRequest, status: int, message: str) -> None: ...

    def on_unreachable(self, request: SimulatedRequest) -> None:
        """The entry pod cannot reach the predict pod."""

    def on_load_start(self, key: str) -> None: ...
    def on_load_end(self, source: Tier, seconds: float) -> None: ...

    def on_pod_death(self, pod: RequestPod) -> None:
        """The pod's process died; its connections broke."""

    def on_pod_end(self, idle_byte_s: float) -> None:
        """A pod ended; `idle_byte_s`: bytes of idle models, integrated over the pod's lifetime."""
