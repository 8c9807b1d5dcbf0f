"""Interface of policies, live and in the simulator: views of the pool in, actions out.

Actions are carried out in the order of the plan. They are idempotent, and an action that is no
longer possible is skipped. Each has a reason, for metrics, and a detail, a sentence for operators.
Models are given by key, pods by name. Times in seconds on the registry's clock, sizes in bytes.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Final, Generic, TypeVar

from autoscaler.forecasting.forecasts import Demand
from registry.domain.demand import ArrivalHint, QueueStats
from registry.domain.model import LoadFailure, ModelSpec, Tier
from registry.domain.pod_index import Residency
from registry.domain.pod_state import ANY_COPIES, PodState
from registry.domain.records import PodShape, WantedPods

NEVER_S: Final = -inf
"""Time of an event that never happened."""
_EMPTY_QUEUE: Final = QueueStats()


@dataclass(frozen=True, slots=True)
class CopyUse:
    """Use of one pod's copy of a model."""

    ongoing: int = 0
    last_s: float = NEVER_S
    """End of the copy's last request."""
    served: int = 0
    """Requests since the copy was loaded."""


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model, in the generation that serves requests."""

    spec: ModelSpec
    size_bytes: int
    """Size on the device."""
    infer_s: float = 0.5
    """Device time of one request: its share of a batch."""
    hold_s: float = 0.5
    """Slot time of one request that does not wait."""
    load_s: Mapping[Tier, float] = field(default_factory=dict)
    """Expected time of a load to the device, by the tier it starts from."""
    holders: Mapping[str, Residency] = field(default_factory=dict)
    """Residency by pod; pods that hold nothing of the model are absent."""
    uses: Mapping[str, CopyUse] = field(default_factory=dict)
    """Use of each pod's copy, where known."""
    arrived: int = 0
    """Requests since the last plan."""
    last_arrival_s: float = NEVER_S
    waiting: QueueStats = _EMPTY_QUEUE
    failure: LoadFailure | None = None

    @property
    def key(self) -> str:
        return self.spec.key

    @property
    def copies(self) -> int:
        """Pods that hold the model on their device or load it there."""
        return sum(each.is_warm or each.is_warming for each in self.holders.values())

    def may_load(self, now_s: float) -> bool:
        """False while the delay after a failed load lasts."""
        return self.failure is None or self.failure.retry_at_s <= now_s

    def load_from_s(self, tier: Tier) -> float:
        return 0.0 if tier is Tier.DEVICE else self.load_s.get(tier, 0.0)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the number of pods; None: no maximum."""

    min_pods: int = 0
    max_pods: int | None = None


@dataclass(frozen=True, slots=True)
class PoolView:
    """One observed pool: what a tick starts from, and the input of its plan."""

    time_s: float
    pods: Mapping[str, PodState]
    """By name, as the registry knows them now."""
    models: tuple[ModelView, ...]
    demand: Demand | None = None
    """None before the first forecast."""
    limits: Limits = Limits()
    paused: Collection[str] = ()
    """Pods that refused a request recently: loads are planned for others."""
    has_host_tier: bool = False
    """Whether nodes have memory for models that leave a device."""
    hints: Sequence[ArrivalHint] = ()
    """Arrivals that schedulers of workflows announce."""
    wanted: WantedPods | None = None
    """The registry's record of the number of pods."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the models."""
        return tuple(str(each.spec.name) for each in self.models)

    @property
    def accepting(self) -> list[PodState]:
        """The pods that get requests and loads."""
        return [
            pod for pod in self.pods.values() if pod.is_accepting and pod.name not in self.paused
        ]


class ActionReason(StrEnum):
    """Reasons of actions, also a metric label."""

    FORECAST = "forecast"
    """Requests are expected."""
    ARRIVING = "arriving"
    """Recent arrivals need this many pods."""
    WAITING = "waiting"
    """Requests are queued."""
    COPIES = "copies"
    """More or fewer copies than annotations or load require."""
    IDLE = "idle"
    """A copy was idle longer than it is worth keeping, or a pod is kept until the pool is idle."""
    ROOM = "room"
    """Another model needs the memory more."""
    QUOTA = "quota"
    """The models of the namespace take more memory of the pool than it may use."""
    TURN = "turn"
    """Round robin: the model's turn began or ended."""
    FLOOR = "floor"
    """The pool's limits require at least this many pods."""
    CEILING = "ceiling"
    """The pool's limits allow at most this many pods."""


@dataclass(frozen=True, slots=True)
class Load:
    """Ensure a model is on this tier of a pod or a faster one; starts a load unless one runs."""

    key: str
    pod: str
    tier: Tier
    reason: ActionReason
    detail: str = ""
    max_other_copies: int = ANY_COPIES
    """The load ends if more other pods hold or load the model by then."""


@dataclass(frozen=True, slots=True)
class Demote:
    """Move a model to a lower tier of a pod once no request uses it; `REMOTE`: keep nothing."""

    key: str
    pod: str
    tier: Tier
    reason: ActionReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class SetPods:
    """Scale the pool to these pods."""

    shapes: tuple[PodShape, ...]
    reason: ActionReason
    detail: str = ""

    @property
    def pods(self) -> int:
        """Number of pods of all shapes together."""
        return sum(shape.count for shape in self.shapes)


@dataclass(frozen=True, slots=True)
class DrainPod:
    """Stop routing requests to a pod; it deregisters once its running requests are finished."""

    pod: str
    reason: ActionReason
    detail: str = ""


Action = Load | Demote | SetPods | DrainPod

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class LoadingPolicy(Generic[S]):
    """A policy with its parameters. Immutable: each `plan` takes a state and returns the next."""

    name: str
    start: S
    """The state before the first plan; the caller may return to it at any time."""
    plan: Callable[[PoolView, S], tuple[tuple[Action, ...], S]]
    """From view and state to actions and next state. Pure."""
    reads_history: bool = False
    """True if `plan` reads `Demand.history`."""
    reads_demand: bool = True
    """True if `plan` reads the demand; otherwise nothing needs to be forecast."""


@dataclass(frozen=True, slots=True)
class IdleCopy:
    """An evictable copy and the time since its last use."""

    pod: str
    idle_s: float


def idle_copies(model: ModelView, view: PoolView) -> list[IdleCopy]:
    """Evictable copies, longest idle first: not pinned, not in use, not needed for `min-copies`.

    A copy is idle since its own last use, or the model's last arrival if that is unknown, and at
    most since it was loaded.
    """
    policy = model.spec.policy
    if policy.pin or model.waiting.requests:
        return []
    warm = [pod for pod, each in model.holders.items() if each.is_warm and pod in view.pods]
    spare = len(warm) - policy.min_copies
    if spare <= 0:
        return []
    idle = []
    for pod in warm:
        use = model.uses.get(pod) or CopyUse(last_s=model.last_arrival_s)
        if not use.ongoing:
            since_s = max(model.holders[pod].since_s, use.last_s)
            idle.append(IdleCopy(pod, max(0.0, view.time_s - since_s)))
    idle.sort(key=lambda each: (-each.idle_s, each.pod))
    return idle[:spare]


@dataclass(frozen=True, slots=True)
class IdlePod:
    """A pod without running requests and loads, and the models on its device."""

    pod: PodState
    warm: tuple[ModelView, ...]
    """Least recently used first."""

    def last_use_s(self, model: ModelView) -> float:
        """Time of the model's last use on the pod; its last arrival if that is unknown."""
        use = model.uses.get(self.pod.name)
        return model.last_arrival_s if use is None else use.last_s

    def select_evictions(
        self, size_bytes: int, candidates: Iterable[ModelView]
    ) -> tuple[ModelView, ...] | None:
        """The first unpinned candidates whose eviction frees enough memory; None: too few.

        Free memory is the budget less the sizes of the models: pods report it with each heartbeat
        only.
        """
        held = sum(each.size_bytes for each in self.warm)
        missing = size_bytes - (self.pod.budget_bytes - held)
        chosen: list[ModelView] = []
        for model in candidates:
            if missing <= 0:
                break
            if not model.spec.policy.pin:
                chosen.append(model)
                missing -= model.size_bytes
        return tuple(chosen) if missing <= 0 else None


def idle_pods(view: PoolView) -> list[IdlePod]:
    """Sorted by name."""
    warm: dict[str, list[ModelView]] = {name: [] for name in view.pods}
    is_loading = set()
    for model in view.models:
        for name, each in model.holders.items():
            if each.is_warming:
                is_loading.add(name)
            elif each.is_warm and name in warm:
                warm[name].append(model)
    found = []
    for pod in sorted(view.accepting, key=lambda each: each.name):
        if pod.inferring or pod.slots_busy or pod.name in is_loading:
            continue
        idle = IdlePod(pod, ())
        order = sorted(warm[pod.name], key=lambda each: (idle.last_use_s(each), each.key))
        found.append(IdlePod(pod, tuple(order)))
    return found


def free_device_bytes(view: PoolView) -> dict[str, float]:
    """By pod; running loads take their memory already."""
    free: dict[str, float] = {name: pod.budget_bytes for name, pod in view.pods.items()}
    for model in view.models:
        for name, each in model.holders.items():
            if name in free and (each.is_warm or each.is_warming):
                free[name] -= model.size_bytes
    return free


def pods_short_of_memory(view: PoolView) -> set[str]:
    """Pods without room for some model that they do not hold."""
    by_size = sorted(view.models, key=lambda each: -each.size_bytes)

    def largest_absent(pod: str) -> int:
        for model in by_size:
            held = model.holders.get(pod)
            if held is None or not (held.is_warm or held.is_warming):
                return model.size_bytes
        return 0

    return {name for name, free in free_device_bytes(view).items() if free < largest_absent(name)}
