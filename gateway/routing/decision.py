"""Input and output of a routing policy: a request, and the decision to send, wait or reject."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from registry.domain.cluster import ClusterState
from registry.domain.pod_state import LoadMode


class Reason(StrEnum):
    """The reason of a decision. A closed set: also a metric label."""

    WARM = "warm"
    WARM_REMOTE = "warm-remote"
    WARMING = "warming"
    WARMING_REMOTE = "warming-remote"
    COLD = "cold"
    COLD_WARM_BUSY = "cold-warm-busy"
    MODEL_OBLIVIOUS = "model-oblivious"
    BATCH_TURN = "batch-turn"
    """The pod whose turn it is to get a batch."""
    QUEUE_WARM_BUSY = "queue-warm-busy"
    QUEUE_WARMING = "queue-warming"
    QUEUE_NO_SLOT = "queue-no-slot"
    QUEUE_TARGET = "queue-target"
    """Slots are free only at pods whose ongoing inferences have reached the target."""
    QUEUE_MEMORY = "queue-memory"
    """Slots are free only where loads take all memory, or where an eviction costs others more."""
    NO_PODS = "no-pods"
    DEADLINE = "deadline"
    QUEUE_FULL = "queue-full"
    QUEUE_TIMEOUT = "queue-timeout"
    LOAD_FAILED = "load-failed"
    MODEL_GONE = "model-gone"
    NO_SUPPORTING_RUNTIME = "no-supporting-runtime"
    """No pod of the pool can ever serve the model as it is declared."""
    MODEL_STOPPED = "model-stopped"
    """Its owner has stopped it, by KServe's annotation."""
    POLICY_FAILED = "policy-failed"
    """The plug-in that the model names as its policy is not installed here, or has an error."""


@dataclass(slots=True)
class RequestView:
    """A request as policies see it. Times in seconds on the registry's clock."""

    key: str
    """Key of the model generation."""
    arrival_s: float
    draw: float = 0.0
    """A uniform number in [0, 1), drawn once per request: seeds every random choice."""
    sequence: int = 0
    """Number of requests that this gateway received before."""
    target_ongoing: int = 3
    ahead: int = 0
    """Requests of the same model queued before it."""
    behind: int = 0
    """Requests of the same model queued after it."""
    stalled_s: float = 0.0
    """Time since its queue last became shorter; 0 if it is not queued."""
    deadline_s: float | None = None
    lost_s: float = 0.0
    """Time that earlier requests of the model lost for lack of another copy (`ski_rental`)."""
    queued: int = 0
    """Requests queued in this gateway, of all models."""
    size_class: int | None = None
    """Of its body (`registry.domain.estimates`); None: not known."""
    max_load_wait_s: float = 0.0
    """How long it waits for more requests of its model before a load that evicts others."""
    may_try_transfer: bool = True
    """Whether it may be proxied although the model's transfers have never been measured."""
    cached: Mapping[str, float] | None = None
    """The share of its prompt that pods have computed before, by name; None: it has no prompt."""
    promptless_class: int = 0
    """The size class that it would have without its prompt."""


@dataclass(slots=True)
class LatencyEstimate:
    """Time from now to the response."""

    seconds: float
    is_measured: bool
    """False if any part is a prior; deadlines are never rejected on such an estimate."""
    guessed_s: float = 0.0
    """The part of `seconds` that is not known: work of other gateways' requests, delays of late
    ones. No request is rejected for it."""
    delays_s: float = 0.0
    """Time that requests which the device serves after this one lose to it, all together."""


@dataclass(slots=True)
class RoutingOption:
    """A way to serve a request that a policy considered, also for `pilotlight explain`."""

    name: str
    forecast: LatencyEstimate
    reason: Reason
    entry: str = ""
    predict: str = ""
    mode: LoadMode | None = None
    """None: wait in the queue."""
    max_other_copies: int = -1
    target_ongoing: int = 0
    credit_s: float = 0.0
    """Subtracted from the cost when options are compared."""
    delays_s: float = 0.0
    """Time that requests behind this one lose, all together: on the device, the link, the slot."""
    evicts_s: float = 0.0
    """Expected time that later requests of evicted models lose."""
    leaves_s: float = 0.0
    """Expected time that waiting and forecast requests lose to what the option leaves behind."""

    @property
    def cost_s(self) -> float:
        """What options are compared by: this request's own time, and what all others lose."""
        others_s = self.delays_s + self.evicts_s + self.leaves_s
        return self.forecast.seconds + others_s - self.credit_s


@dataclass(slots=True)
class ColdStartLoss:
    """Time that a request loses for lack of another copy, and the time to load one, in seconds."""

    seconds: float
    load_s: float


@dataclass(slots=True)
class SendTo:
    """Reserve a slot at `entry` and a place in the inference stage of `predict`, and send."""

    entry: str
    predict: str
    mode: LoadMode
    reason: Reason
    max_other_copies: int = -1
    """With `LoadMode.LOAD`: copies elsewhere up to which the load is still wanted; -1: any."""
    target_ongoing: int = 0
    """Maximum number of requests in the predict pod's inference stage; 0: any."""
    forecast: LatencyEstimate | None = None
    options: tuple[RoutingOption, ...] = ()
    loss: ColdStartLoss | None = None
    is_investment: bool | None = None
    """Whether others gain by a load more than they lose: it is started even if this request is
    late. None: no load, or a policy that knows no prices."""
    takes_slot: bool = True
    """False: a step that waits in the entry pod's step queue."""
    on_sent: Callable[[ClusterState, float], None] | None = None
    """Called with the time when the request is sent to its pods; it must not raise."""


@dataclass(slots=True)
class Wait:
    """Stay in the gateway's queue until the cluster changes."""

    reason: Reason
    forecast: LatencyEstimate | None = None
    options: tuple[RoutingOption, ...] = ()
    loss: ColdStartLoss | None = None


@dataclass(frozen=True, slots=True)
class Reject:
    """Respond with an error now."""

    reason: Reason
    message: str
    retry_after_s: float | None = None
    http_status: int | None = None
    """The status of a failed load; None: the status that belongs to the reason."""
    options: tuple[RoutingOption, ...] = ()
    loss: ColdStartLoss | None = None


Decision = SendTo | Wait | Reject
