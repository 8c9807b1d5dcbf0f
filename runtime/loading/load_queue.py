"""A load, and the order of a pod's loads: how many transfer at once, and which one is next. Pure.

Loads of one pod share its link, its CPU and the copy to its device, so all of them end late if all
run at once. The next one is the load with the least expected time per waiting request (weighted
shortest processing time first: W. E. Smith 1956, "Various optimizers for single-stage production"),
until another has waited for `MAX_AGE` times its own expected time. Preloads come after loads that
requests wait for, and never delay them: first those that are due at some time, by that time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from math import inf
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from common.backoff import Backoff
from registry.domain.model import LoadFailure, ModelSpec, Tier
from registry.domain.pod_state import LoadClaim
from runtime.errors import (
    DiskFull,
    LoadFailed,
    ModelBroken,
    ModelInvalid,
    ModelTooLarge,
    ModelUnsupported,
    status_of,
)
from runtime.storage.load_priority import LoadTicket

if TYPE_CHECKING:
    from registry.domain.cluster import ClusterState


MAX_CONCURRENT: Final = 4
"""Loads of one pod that transfer at once. 100 models of 250 MB on 8 pods, simulated: p50 2.25 s
with 2 or 4, 3.5 s with 16; more than one hides the latency of storage."""
MAX_AGE: Final = 10.0
"""Times its own expected time for which a load may wait before it is next."""
LONG: Final = 2.0
"""A running load with more than this many times the expected time of another does not block it:
both share the link."""


W = TypeVar("W")


@dataclass(eq=False, slots=True)
class Load(Generic[W]):
    """A running load. Mutable: owned by the event loop."""

    spec: ModelSpec
    max_other_copies: int
    """Limit of the copies at other pods, while no request waits."""
    is_preload: bool
    """Whether the load continues without waiting requests."""
    started_s: float
    waiting: W
    """Those who wait for its end."""
    turn_s: float = 0.0
    """Start of its turn, on the clock of `started_s`."""
    token: int = 0
    """Token of the newest claim that the gateway made for a waiting request; 0: none."""
    claim: LoadClaim = field(default_factory=partial(LoadClaim, None, 0))
    """Its right to load the model, by the registry; `token` may be newer."""
    ticket: LoadTicket = field(default_factory=LoadTicket)
    source: Tier = Tier.REMOTE
    waiters: int = 0
    askers: int = 0
    """Clients that asked for it ahead of requests and may take that back."""
    is_reported: bool = False
    """Whether the registry received the result, or another pod has the claim."""


@dataclass(eq=False, slots=True)
class _Turn:
    load: Load[Any]
    expected_s: float
    since_s: float
    """When it began to wait; while it runs, when it began to run."""
    grant: Callable[[], None]

    @property
    def is_urgent(self) -> bool:
        return self.load.ticket.is_urgent

    @property
    def due_s(self) -> float:
        """Infinite without such a time."""
        return inf if self.load.ticket.due_s is None else self.load.ticket.due_s

    def is_aged(self, now_s: float) -> bool:
        return now_s - self.since_s > MAX_AGE * self.expected_s

    def remaining_s(self, now_s: float) -> float:
        """Of a running load; one past its expected time is expected to take as long again."""
        elapsed_s = now_s - self.since_s
        return self.expected_s - elapsed_s if elapsed_s < self.expected_s else elapsed_s


class LoadTurns:
    """The loads of a pod that wait for their turn, and those that run."""

    def __init__(self, now_s: Callable[[], float], max_concurrent: int = MAX_CONCURRENT) -> None:
        self._now_s = now_s
        self._max_concurrent = max_concurrent
        self._waiting: list[_Turn] = []
        self._running: list[_Turn] = []

    def enter(self, load: Load[Any], expected_s: float, grant: Callable[[], None]) -> None:
        """Call `grant`, now or later, when it is the load's turn."""
        self._waiting.append(_Turn(load, expected_s, self._now_s(), grant))
        self.refresh()

    def leave(self, load: Load[Any]) -> None:
        """End the load's turn or its wait; no effect without either."""
        for turns in (self._waiting, self._running):
            turns[:] = [turn for turn in turns if turn.load is not load]
        self.refresh()

    def refresh(self) -> None:
        """Grant turns; called when a load arrives, ends, or changes its priority."""
        now_s = self._now_s()
        while (turn := self._next(now_s)) is not None:
            self._waiting.remove(turn)
            turn.since_s = now_s
            self._running.append(turn)
            turn.grant()

    def _next(self, now_s: float) -> _Turn | None:
        """The first load in order that may start; equal ones in the order of their arrival."""

        def rank(turn: _Turn) -> tuple[bool, float, bool, float]:
            is_aged = turn.is_aged(now_s)
            per_request_s = turn.since_s if is_aged else turn.expected_s / max(1, turn.load.waiters)
            due_s = inf if turn.is_urgent else turn.due_s
            return (not turn.is_urgent, due_s, not is_aged, per_request_s)

        return next(
            (turn for turn in sorted(self._waiting, key=rank) if self._may_start(turn, now_s)), None
        )

    def _may_start(self, turn: _Turn, now_s: float) -> bool:
        if not turn.is_urgent:
            preloads = sum(not each.is_urgent for each in self._running)
            return len(self._running) < self._max_concurrent or (
                turn.is_aged(now_s) and not preloads
            )
        blocking = sum(
            each.is_urgent and each.remaining_s(now_s) <= LONG * turn.expected_s
            for each in self._running
        )
        return blocking < self._max_concurrent


# Failed loads, of this pod and of the pool. The pause before the next attempt doubles from 1 s to
# 60 s; to 10 s after a full disk, where an attempt ends at once.


BACKOFF: Final = Backoff(initial_s=1.0, max_s=60.0)
DISK_FULL_BACKOFF: Final = Backoff(initial_s=1.0, max_s=10.0)
_PERMANENT: Final = {status_of(each("")): each for each in (ModelInvalid, ModelUnsupported)}
BROKEN_PAUSE_S: Final = 300.0
"""Pause before a hung model is loaded again: each hang costs a thread until the pod ends."""


def next_failure(
    key: str, error: LoadFailed, *, previous: LoadFailure | None, now_s: float
) -> LoadFailure:
    """The failure to record after the `previous` one of the same model; `now_s`: registry time."""
    backoff = DISK_FULL_BACKOFF if isinstance(error, DiskFull) else BACKOFF
    attempts = previous.attempts + 1 if previous is not None and previous.key == key else 1
    return LoadFailure(
        key=key,
        reason=error.reason,
        message=str(error),
        attempts=attempts,
        retry_at_s=now_s + backoff.pause_s(attempts),
        http_status=int(status_of(error)),
        exceeds_budget=isinstance(error, ModelTooLarge),
    )


class LoadFailures:
    """The last failure by model; this pod's failures are known during a registry outage, too."""

    def __init__(self, state: Callable[[], ClusterState], registry_now_s: Callable[[], float]):
        self._state = state
        self._now_s = registry_now_s
        self._own: dict[str, LoadFailure] = {}

    def check(self, spec: ModelSpec) -> None:
        """Raise LoadFailed before the time of the model's next attempt."""
        failure = self._last(spec)
        if failure is None:
            return
        wait_s = failure.retry_at_s - self._now_s()
        if wait_s <= 0:
            return
        if failure.http_status == HTTPStatus.INSUFFICIENT_STORAGE:
            if spec.key not in self._own:  # budgets of pods differ
                return
            if failure.exceeds_budget:
                raise ModelTooLarge(failure.message)
            raise DiskFull(failure.message, retry_after_s=wait_s)
        if failure.is_permanent:
            raise _PERMANENT[HTTPStatus(failure.http_status)](failure.message)
        raise LoadFailed(failure.message, retry_after_s=wait_s)

    def record(self, spec: ModelSpec, error: LoadFailed) -> LoadFailure:
        """Record a failed load, and in the error when a client may try again, if that can help."""
        now_s = self._now_s()
        failure = next_failure(spec.key, error, previous=self._last(spec), now_s=now_s)
        self._own[spec.key] = failure
        error.retry_after_s = None if failure.is_permanent else failure.retry_at_s - now_s
        return failure

    def record_broken(self, key: str, reason: str) -> LoadFailure:
        """Record that an inference of the model hung."""
        failure = LoadFailure(
            key=key,
            reason=ModelBroken.reason,
            message=reason,
            attempts=1,
            retry_at_s=self._now_s() + BROKEN_PAUSE_S,
        )
        self._own[key] = failure
        return failure

    def clear(self, key: str) -> None:
        self._own.pop(key, None)

    def _last(self, spec: ModelSpec) -> LoadFailure | None:
        """The last failure of this pod or of any pod of the pool."""
        own = self._own.get(spec.key)
        record = self._state().models.get(spec.name)
        shared = record.failure if record is not None else None
        if shared is None or shared.key != spec.key:
            return own
        return shared if own is None or shared.retry_at_s > own.retry_at_s else own
