"""Interface of policies, live and in the simulator: views of the pool in, actions out.

Actions are carried out in the order of the plan. They are idempotent, and an action that is no
longer possible is skipped. Each has a reason, for metrics, and a detail, a sentence for operators.
Models are given by key, pods by name. Times in seconds on the registry's clock, sizes in bytes.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf
from typing import Final, Generic, TypeVar

from autoscaler.forecasting.forecasts import Demand
from registry.domain.cluster import ClusterState
from registry.domain.demand import QueueStats
from registry.domain.estimates import PRIORS
from registry.domain.model import LoadFailure, ModelName, ModelRecord, ModelSpec, Tier
from registry.domain.pod import CopyReport, PodPhase, default_slots
from registry.domain.pod_index import Residency
from registry.domain.pod_state import ANY_COPIES, PodState
from registry.domain.records import ActionRecord, PodShape

NEVER_S: Final = -inf
"""Time of an event that never happened."""
_EMPTY_QUEUE: Final = QueueStats()


@dataclass(frozen=True, slots=True)
class PlannedPod:
    """One pod, as the plan of a tick takes it: it does not change meanwhile."""

    name: str
    node: str
    phase: PodPhase = PodPhase.READY
    is_accepting: bool = True
    """True if it gets requests: ready, and reachable by the gateways."""
    slots: int = default_slots()
    slots_busy: int = 0
    inferring: int = 0
    """Requests in their inference stage."""
    budget_bytes: Mapping[Tier, int] = field(default_factory=dict)
    """By tier; an absent tier has no known limit."""
    used_bytes: Mapping[Tier, int] = field(default_factory=dict)
    placed_model: str = ""
    """The one model that a planner has placed on the pod."""

    def free_bytes(self, tier: Tier = Tier.DEVICE) -> float:
        """Memory for loads without an eviction; infinity without a known limit."""
        budget = self.budget_bytes.get(tier)
        return inf if budget is None else max(0, budget - self.used_bytes.get(tier, 0))


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
    """The input of one plan."""

    time_s: float
    pods: Mapping[str, PlannedPod]
    models: tuple[ModelView, ...]
    demand: Demand | None = None
    """None before the first forecast."""
    limits: Limits = Limits()

    @property
    def names(self) -> tuple[str, ...]:
        """Of the models."""
        return tuple(str(each.spec.name) for each in self.models)


_SOURCES: Final = (Tier.HOST, Tier.DISK, Tier.REMOTE)


@dataclass(frozen=True, slots=True)
class Observations:
    """What the registry's state does not include; everything may be absent."""

    arrived: Mapping[ModelName, int] = field(default_factory=dict)
    """Requests since the last plan."""
    last_arrival_s: Mapping[ModelName, float] = field(default_factory=dict)
    waiting: Mapping[ModelName, QueueStats] = field(default_factory=dict)
    uses: Mapping[str, Mapping[str, CopyUse]] = field(default_factory=dict)
    """By model key, then pod."""
    size_bytes: Mapping[str, int] = field(default_factory=dict)
    """By model key, where the size is known before the first load."""
    budget_bytes: Mapping[str, Mapping[Tier, int]] = field(default_factory=dict)
    """By pod: budgets of tiers other than the device, whose budget pods report themselves."""
    ongoing: Sequence[ActionRecord] = ()
    """Actions that pods may not report yet."""
    paused: Collection[str] = ()
    """Pods that refused a request recently: loads are planned for others."""
    time_scale: float = 1.0
    """For replays of compressed traces: at sixty times the pace, loads, inferences and gaps between
    arrivals are sixty times as short. Policies have constants for real time, so that all times of
    the view are on a clock that is faster by this factor."""


def read_pool(
    state: ClusterState,
    now_s: float,
    observations: Observations,
    *,
    limits: Limits | None = None,
    demand: Demand | None = None,
) -> PoolView:
    """The pool at `now_s`. Models, and the rows of `demand`, are in the order of names.

    The view shares tables of residency with `state`: use it before `state` changes.
    """
    pods = {name: _pod(pod, observations) for name, pod in sorted(state.pods.items())}
    link_bytes_per_s = min(
        (each.info.link_bytes_per_s for each in state.pods.values() if each.info.link_bytes_per_s),
        default=None,
    )
    models = tuple(
        _model(state, name, record, observations, link_bytes_per_s)
        for name, record in sorted(state.models.items())
    )
    models = _with_ongoing_loads(models, state, observations.ongoing, now_s)
    if (factor := observations.time_scale) != 1:
        now_s, models = factor * now_s, tuple(_scaled(each, factor) for each in models)
    return PoolView(now_s, pods, models, demand, limits or Limits())


def _with_ongoing_loads(
    models: tuple[ModelView, ...],
    state: ClusterState,
    ongoing: Sequence[ActionRecord],
    now_s: float,
) -> tuple[ModelView, ...]:
    """With the loads that were started and that their pods do not report yet."""
    loading: dict[str, list[str]] = {}
    for record in ongoing:
        if record.verb == "load" and record.tier == Tier.DEVICE and record.pod in state.pods:
            loading.setdefault(record.subject, []).append(record.pod)
    if not loading:
        return models

    def with_loads(model: ModelView) -> ModelView:
        known = model.holders
        new = {
            pod: Residency(Tier.REMOTE, Tier.REMOTE, now_s, 0)
            for pod in loading.get(str(model.spec.name), ())
            if pod not in known or not (known[pod].is_warm or known[pod].is_warming)
        }
        return replace(model, holders={**known, **new}) if new else model

    return tuple(with_loads(model) for model in models)


def _scaled(model: ModelView, factor: float) -> ModelView:
    failure, waiting = model.failure, model.waiting
    return replace(
        model,
        infer_s=factor * model.infer_s,
        hold_s=factor * model.hold_s,
        load_s={tier: factor * seconds for tier, seconds in model.load_s.items()},
        holders={
            pod: replace(each, since_s=factor * each.since_s) for pod, each in model.holders.items()
        },
        uses={pod: replace(each, last_s=factor * each.last_s) for pod, each in model.uses.items()},
        last_arrival_s=factor * model.last_arrival_s,
        waiting=replace(waiting, oldest_s=factor * waiting.oldest_s),
        failure=failure and replace(failure, retry_at_s=factor * failure.retry_at_s),
    )


def _pod(pod: PodState, observations: Observations) -> PlannedPod:
    """The device's budget excludes memory that other pods use on the same accelerator."""
    budget_bytes = pod.memory_bytes
    if pod.sharing:
        budget_bytes = pod.used_bytes.get(Tier.DEVICE, 0) + pod.free_bytes
    return PlannedPod(
        name=pod.name,
        node=pod.node,
        phase=pod.phase,
        is_accepting=pod.is_accepting and pod.name not in observations.paused,
        slots=pod.slots,
        slots_busy=pod.slots_busy,
        inferring=pod.inferring,
        budget_bytes={**observations.budget_bytes.get(pod.name, {}), Tier.DEVICE: budget_bytes},
        used_bytes={tier: pod.used_bytes.get(tier, 0) for tier in (Tier.DEVICE, *_SOURCES[:2])},
        placed_model=pod.placed_model,
    )


def _model(
    state: ClusterState,
    name: ModelName,
    record: ModelRecord,
    observations: Observations,
    link_bytes_per_s: float | None,
) -> ModelView:
    spec, failure = record.serving, record.failure
    holders, measured = state.holders(spec.key), state.measured(spec.key)
    stages = measured.stages
    size_bytes = observations.size_bytes.get(spec.key) or max(
        (each.size_bytes for each in holders.values() if each.tier is not Tier.REMOTE), default=0
    )
    return ModelView(
        spec=spec,
        size_bytes=size_bytes or int(PRIORS.load_bytes),
        infer_s=stages.share_s,
        hold_s=stages.hold_s,
        load_s={tier: measured.load_from(tier, link_bytes_per_s).seconds for tier in _SOURCES},
        holders=holders,
        uses=observations.uses.get(spec.key, {}),
        arrived=observations.arrived.get(name, 0),
        last_arrival_s=observations.last_arrival_s.get(name, NEVER_S),
        waiting=observations.waiting.get(name, QueueStats()),
        failure=failure if failure is not None and failure.key == spec.key else None,
    )


def copy_uses(
    state: ClusterState, reports: Mapping[str, tuple[float, Mapping[str, CopyReport]]]
) -> dict[str, dict[str, CopyUse]]:
    """By model key, then pod: the use of every warm copy at the pods that report it.

    `reports` are by pod, with the registry's time of each. A copy that was loaded after its pod's
    report has not been used.
    """
    uses: dict[str, dict[str, CopyUse]] = {}
    for key, holders in state.residency.items():
        for pod, residency in holders.items():
            if not residency.is_warm or pod not in reports:
                continue
            at_s, copies = reports[pod]
            report = copies.get(key) if at_s >= residency.since_s else None
            uses.setdefault(key, {})[pod] = CopyUse() if report is None else _use(report, at_s)
    return uses


def _use(report: CopyReport, at_s: float) -> CopyUse:
    last_s = NEVER_S if report.idle_s is None else at_s - report.idle_s
    return CopyUse(report.ongoing, last_s, report.served)


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

    pod: PlannedPod
    warm: tuple[ModelView, ...]
    """Least recently used first."""

    def last_use_s(self, model: ModelView) -> float:
        """Time of the model's last use on the pod; its last arrival if that is unknown."""
        use = model.uses.get(self.pod.name)
        return model.last_arrival_s if use is None else use.last_s

    @property
    def loaded_s(self) -> float:
        """End of the pod's last load."""
        name = self.pod.name
        return max((each.holders[name].since_s for each in self.warm), default=NEVER_S)

    @property
    def has_served(self) -> bool:
        """True if the pod holds nothing, or served a request after its last load."""
        return not self.warm or any(self.last_use_s(each) > self.loaded_s for each in self.warm)

    def select_evictions(
        self, size_bytes: int, candidates: Iterable[ModelView]
    ) -> tuple[ModelView, ...] | None:
        """The first unpinned candidates whose eviction frees enough memory; None: too few.

        Free memory is the budget less the sizes of the models: pods report it with each heartbeat
        only.
        """
        budget = self.pod.budget_bytes.get(Tier.DEVICE, inf)
        missing = size_bytes - (budget - sum(each.size_bytes for each in self.warm))
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
    for name, pod in sorted(view.pods.items()):
        is_busy = pod.inferring or pod.slots_busy or name in is_loading
        if is_busy or not pod.is_accepting:
            continue
        idle = IdlePod(pod, ())
        order = sorted(warm[name], key=lambda each: (idle.last_use_s(each), each.key))
        found.append(IdlePod(pod, tuple(order)))
    return found


def free_device_bytes(view: PoolView) -> dict[str, float]:
    """By pod; running loads take their memory already."""
    free = {name: pod.budget_bytes.get(Tier.DEVICE, inf) for name, pod in view.pods.items()}
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
