"""One pod in the in-process copy of a pool: what routing policies and planners read about it.

Mutable for speed. What policies ask about many pods per decision is computed when a count changes.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from math import inf
from operator import attrgetter
from typing import Final, NamedTuple

from registry.domain.device_work import DeviceQueue, DeviceWork
from registry.domain.estimates import Measurements, StageTimes
from registry.domain.model import Tier
from registry.domain.pod import AVERAGE, PodInfo, PodPhase, PodSpeed

_ASSUMED_FOR_S: Final = 1.0
_placed = attrgetter("placed_s")
_MEAN_WEIGHT: Final = 0.125
"""Weight of the latest request in the moving averages."""
_RECENT: Final = 256
"""Requests that the averages follow: what came before has a weight of 1e-15."""


@dataclass(eq=False, slots=True)
class PlacedRequest(DeviceWork):
    """One request, with the times expected when it was placed."""

    after_s: float
    """From the end of its inference to the response."""
    entry: "PodWork"
    predict: "PodWork"

    def slot_left_s(self, now_s: float) -> float:
        """Time until its slot is free; a late request takes as long again as it is late."""
        end_s = self.start_s + self.infer_s + self.after_s
        return min(abs(end_s - now_s), end_s - self.placed_s)

    def end(self, *, is_cancelled: bool = False) -> None:
        """The request is over; no effect the second time. A device completes what it has begun."""
        if self.entry is not self.predict:
            self.entry.proxied.pop(self, None)
        self.predict.remove(self)
        if is_cancelled:
            self.predict.cancelled = self


@dataclass(slots=True)
class MeanTimes:
    """What one request at a pod takes on average."""

    share_s: float
    """Of the device."""
    hold_s: float
    """Of a slot, unhindered."""
    after_s: float
    """Of a slot after its inference."""


@dataclass(eq=False, slots=True)
class PodWork(DeviceQueue[PlacedRequest]):
    """The requests that this process placed at one pod, in the order of placement. Pure.

    The registry counts a pod's requests; a gateway also knows the models of its own, and so when
    the device and each slot is expected to be free. Times in seconds on the registry's clock, which
    may jump: what is left of a request is never negative and never more than at first.
    """

    proxied: dict[PlacedRequest, None] = field(default_factory=dict)
    """Those that hold a slot here, with their inference elsewhere."""
    _mean: MeanTimes | None = None
    """Of the requests placed here before the `_recent` ones."""
    _recent: deque[StageTimes] = field(default_factory=lambda: deque(maxlen=_RECENT))
    assumed: MeanTimes | None = None
    """Before the first: those of the models at the pod, computed at `assumed_at_s`."""
    assumed_at_s: float = 0.0

    def add(self, request: PlacedRequest, times: StageTimes) -> None:
        """Add a request that was placed at this predict pod; `times`: of its slot, unhindered."""
        if self._seen_s != inf:
            if request.placed_s != self._seen_s:
                self._look_at(request.placed_s)
            self._include(request)
        self.inferences[request] = None
        self._recent.append(times)

    @property
    def holders(self) -> list[PlacedRequest]:
        """Those that hold a slot here, in the order of placement."""
        found = [each for each in self.inferences if each.entry is self]
        return sorted([*found, *self.proxied], key=_placed) if self.proxied else found

    def mean_of_others(self, now_s: float) -> MeanTimes | None:
        """The times of requests that other processes have placed here; None: to be computed."""
        mean = self._mean
        for times in self._recent:
            if mean is None:
                mean = self._mean = MeanTimes(times.share_s, times.hold_s, times.postprocess_s)
            mean.share_s += _MEAN_WEIGHT * (times.share_s - mean.share_s)
            mean.hold_s += _MEAN_WEIGHT * (times.hold_s - mean.hold_s)
            mean.after_s += _MEAN_WEIGHT * (times.postprocess_s - mean.after_s)
        self._recent.clear()
        if mean is not None:
            return mean
        return self.assumed if abs(now_s - self.assumed_at_s) < _ASSUMED_FOR_S else None

    def slots_left_s(
        self, key: str, *, taken: int, ended: int, load_s: float, now_s: float
    ) -> list[float]:
        """Time until each slot that a placed request holds is free, in the order of placement.

        `taken`: slots taken by the registry's count; the first requests beyond that number hold
        none. The first `ended` are past their inference. Those of `key` wait for the rest of a load
        of `load_s`.
        """
        left_s: list[float] = []
        holders = self.holders
        skipped = len(holders) - taken
        for request in holders:
            slot_s = request.slot_left_s(now_s)
            if ended > 0:
                slot_s = min(slot_s, request.after_s)
            elif load_s > 0.0 and request.key == key:
                slot_s = max(slot_s, load_s + request.infer_s + request.after_s)
            if skipped <= 0:
                left_s.append(slot_s)
            ended -= 1
            skipped -= 1
        return left_s


_KEPT: Final = 1024


class ChangeLog:
    """The pods of the latest changes of counts, memory and membership: rankings update by it."""

    __slots__ = ("count", "pods")

    def __init__(self) -> None:
        self.count = 0
        self.pods: deque[PodState] = deque(maxlen=_KEPT)

    def add(self, pod: "PodState") -> None:
        self.count += 1
        self.pods.append(pod)

    def since(self, count: int, most: int) -> "set[PodState] | None":
        """Those of the changes after the first `count`; None: of more than `most`, or forgotten."""
        new = self.count - count
        if new > most or new > len(self.pods):
            return None
        return set(islice(reversed(self.pods), new))


class ChangeCounter:
    """How often something has changed; results computed at another count are out of date."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class PodState:
    """One pod. One task writes it, through the methods; decisions read it without an await."""

    __slots__ = (
        "_ongoing_total",
        "accepting_changes",
        "address",
        "changes",
        "counts_version",
        "epoch",
        "estimates",
        "free_bytes",
        "has_free_slot",
        "inferring",
        "info",
        "is_accepting",
        "is_suspect",
        "kind",
        "loads_total",
        "memory_bytes",
        "name",
        "node",
        "ongoing",
        "phase",
        "placed_model",
        "sharing",
        "slots",
        "slots_busy",
        "slots_used",
        "slowness",
        "speed",
        "used_bytes",
        "version",
        "work",
    )

    def __init__(self, info: PodInfo) -> None:
        self.info = info
        self.name = info.name
        self.address = info.address
        self.node = info.node
        self.slots = info.slots
        self.memory_bytes = info.memory_bytes
        self.kind = info.kind
        self.placed_model = info.placed_model
        self.estimates = Measurements().at(self.kind)
        """By model key; in a `PodIndex` those of all pods of its kind."""
        self.speed = AVERAGE
        self.slowness = 1.0
        """Of `speed`."""
        self.epoch = 0
        self.loads_total = 0
        self.changes = ChangeLog()
        """The pod adds itself here when its rank may have changed: the `PodIndex`'s own log."""
        self.accepting_changes = ChangeCounter()
        """Counts changes of `is_accepting`; shared by all pods of a `PodIndex`."""
        self.version = 0
        """Registry version of the last change of the pod's record."""
        self.counts_version = 0
        """Registry version of the last change of its slots and ongoing requests."""
        self.phase = PodPhase.READY
        """As the pod has reported it."""
        self.is_suspect = False
        """A gateway could not reach the pod; any published change of its record clears this."""
        self.is_accepting = True
        """Whether requests may be sent to the pod: it is ready and not suspect."""
        self.slots_used = 0
        """Slots taken, by the last published count."""
        self.slots_busy = 0
        """With those that this process has requested, less those it has released, since then."""
        self.has_free_slot = info.slots > 0
        """Whether the pod can be a request's entry pod now."""
        self.ongoing = 0
        """Requests in their inference stage, by the last published count."""
        self._ongoing_total = 0
        """As `slots_busy`; below 0 where a release came before the count that has the request."""
        self.inferring = 0
        """The same, at least 0."""
        self.work = PodWork()
        """Requests that this process has placed at the pod."""
        self.used_bytes: Mapping[str, int] = {}
        """By tier."""
        self.free_bytes = info.memory_bytes
        """Device memory a load can use without an eviction."""
        self.sharing: list[PodState] = []
        """In a `PodIndex`: all pods of its accelerator, itself included; empty without a UUID."""

    @property
    def budget_bytes(self) -> int:
        """Device memory for its models; of a shared accelerator without what other pods use."""
        if not self.sharing:
            return self.memory_bytes
        return self.used_bytes.get(Tier.DEVICE, 0) + self.free_bytes

    def set_counts(self, slots_used: int, ongoing: int) -> None:
        slots, inferring = slots_used - self.slots_used, ongoing - self.ongoing
        self.slots_used, self.ongoing = slots_used, ongoing
        self.add_pending(slots, inferring)

    def add_pending(self, slots: int = 0, ongoing: int = 0) -> None:
        """Count what this process has requested, or, below 0, released."""
        changes = self.changes  # as `ChangeLog.add`, without a call per request
        changes.count += 1
        changes.pods.append(self)
        self.slots_busy = busy = self.slots_busy + slots
        self.has_free_slot = busy < self.slots and self.is_accepting
        self._ongoing_total = total = self._ongoing_total + ongoing
        self.inferring = total if total > 0 else 0

    def set_slots(self, slots: int) -> None:
        self.slots = slots
        self.add_pending()

    def set_speed(self, speed: PodSpeed) -> None:
        self.speed = speed
        if speed.slowness != self.slowness:
            self.slowness = speed.slowness
            self.estimates = self.estimates.slowed(speed.slowness)
            self.accepting_changes.count += 1

    def set_phase(self, phase: PodPhase) -> None:
        self.phase = phase
        self._update_accepting()

    def set_suspect(self, *, is_suspect: bool) -> None:
        self.is_suspect = is_suspect
        self._update_accepting()

    def _update_accepting(self) -> None:
        is_accepting = self.phase is PodPhase.READY and not self.is_suspect
        if is_accepting is not self.is_accepting:
            self.is_accepting = is_accepting
            self.accepting_changes.count += 1
            self.add_pending()

    def set_used_bytes(self, used_bytes: Mapping[str, int]) -> None:
        self.used_bytes = used_bytes
        if self.sharing:
            divide_free_bytes(self.sharing)
            return
        self.free_bytes = self.memory_bytes - used_bytes.get(Tier.DEVICE, 0)
        self.changes.add(self)


def divide_free_bytes(pods: Sequence[PodState]) -> None:
    """Set `free_bytes` of all pods of one accelerator, so that its memory counts once.

    Where the free parts of their budgets exceed what is left of the accelerator's memory, each pod
    gets its proportion of that.
    """
    used_bytes = [pod.used_bytes.get(Tier.DEVICE, 0) for pod in pods]
    free_bytes = [
        max(0, pod.memory_bytes - used) for pod, used in zip(pods, used_bytes, strict=True)
    ]
    memory_bytes = max(pod.info.accelerator.memory_bytes for pod in pods)
    left, wanted = max(0, memory_bytes - sum(used_bytes)), sum(free_bytes)
    for pod, free in zip(pods, free_bytes, strict=True):
        pod.free_bytes = free if wanted <= left else free * left // wanted
        pod.changes.add(pod)


@dataclass(frozen=True, slots=True)
class QueuedSteps:
    """Steps of workflows at one pod that have been sent and whose inference has not ended.

    Their reservations name their model, so that every scheduler knows what others have queued.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    """By model key; each at least 1."""
    since_s: float = inf
    """When the pod can have begun the first of them: when the last one before them ended, or, on
    an idle pod, when they came. Infinite: it is not known."""

    def followed_by(self, counts: Mapping[str, int], now_s: float) -> "QueuedSteps":
        """The steps after a change at `now_s`."""
        has_one_ended = any(counts.get(key, 0) < count for key, count in self.counts.items())
        is_begun = bool(self.counts) and not has_one_ended
        return QueuedSteps(dict(counts), self.since_s if is_begun else now_s)


NO_STEPS: Final = QueuedSteps()


def step_reservation_id(identity: str, key: str) -> str:
    """The id of a step's reservation, which names the model for the registry's script."""
    return f"{identity}|{key}"


CLAIM_TTL_S: Final = 5.0
"""Time within which a pod must begin a claimed load."""
ANY_COPIES: Final = -1
"""A claim with it does not depend on the copies at other pods."""


@dataclass(frozen=True, slots=True)
class LoadClaim:
    """The right of a pod to load a model; `token` is None if the registry was unavailable."""

    token: int | None
    epoch: int
    """Epoch of the pod's registration."""


class LoadMode(StrEnum):
    """What a reservation accepts at its predict pod: a warm model, or also a load."""

    WARM = "warm"
    JOIN = "join"
    """A load in progress there."""
    LOAD = "load"
    """A load that the reservation claims."""


class ReservationRequest(NamedTuple):
    """A slot at `entry` and a place in the inference stage of `predict`, granted together.

    Many requests reserve on the same terms: the id, of which a step's is a
    `queued_steps.step_reservation_id`, is no part of them.
    """

    entry: str
    predict: str
    key: str
    mode: LoadMode
    max_other_copies: int = ANY_COPIES
    """With `LoadMode.LOAD`: claim only if at most this many other pods hold or load it."""
    target_ongoing: int = 0
    """Limit of requests in the predict pod's inference stage; 0: none."""
    ttl_s: float = 15.0
    takes_slot: bool = True
    """False: a step that waits in the pod's step queue, which the pod bounds."""


@dataclass(frozen=True, slots=True)
class Granted:
    start: str
    """`warm`, or the tier from which the load starts that the request waits for."""
    load_token: int
    """Fencing token of the load that this reservation claimed at the predict pod; 0: none."""


class Refusal(StrEnum):
    """Why no reservation was made: the copy that the policy read was out of date."""

    GONE = "gone"
    """A pod's lease has expired, or the pod does not accept requests."""
    FULL = "full"
    """The entry pod has no free slot."""
    BUSY = "busy"
    """The predict pod has `target_ongoing` requests."""
    COLD = "cold"
    """The predict pod has the model in no state that the mode accepts."""
    ELSEWHERE = "elsewhere"
    """More than `max_other_copies` other pods hold or load the model."""


TIME_SHARE: Final = 1 / 64
"""Of the time, what probes of one model may take."""
MAX_PAUSE_S: Final = 10.0
"""Longest time without a probe, for models whose probes take longer than that share."""
MAX_MODELS: Final = 4096
"""Above this number, the model that was probed longest ago is forgotten."""


class ProbeBudget:
    """How often work is tried although measurements call it hopeless: the next probe by model key.

    Measurements may be out of date or of larger requests, and a model that serves nothing gets no
    others. Probes are limited by the time that they take. Times in seconds of the caller's clock,
    which may jump. `first_pause_s`: from `begin`, or the first question, to the first probe.
    """

    def __init__(self, first_pause_s: float = 0.0) -> None:
        self._first_pause_s = first_pause_s
        self._pauses: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Time of the last probe, and of the next one."""

    def begin(self, key: str, now_s: float) -> None:
        """Begin the first pause, once."""
        if key not in self._pauses:
            self._pause(key, now_s, self._first_pause_s)

    def is_due(self, key: str, now_s: float) -> bool:
        """Whether a probe may begin now."""
        self.begin(key, now_s)
        last_s, next_s = self._pauses[key]
        return not last_s <= now_s < next_s

    def spend(self, key: str, now_s: float, cost_s: float) -> None:
        """Count a probe that is expected to take `cost_s`."""
        self._pause(key, now_s, min(MAX_PAUSE_S, cost_s / TIME_SHARE))

    def _pause(self, key: str, now_s: float, seconds: float) -> None:
        self._pauses[key] = now_s, now_s + seconds
        self._pauses.move_to_end(key)
        if len(self._pauses) > MAX_MODELS:
            self._pauses.popitem(last=False)
