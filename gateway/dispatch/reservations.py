"""Reservations of this gateway: taken, renewed while their request runs, and released.

A short request at a warm pod reserves optimistically: it ends before another component could use
the registry's record of it. It counts in the local cluster state and is registered if it still runs
after `REGISTER_AFTER_S`. Where optimistic reservations of several gateways collide (the pod
refuses, since pods enforce their own slots), requests to that pod use the registry for a while.
Without Redis every reservation is local, and the next snapshot corrects the counts. A `Placement`
is how a live request waits for its reservation, and holds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from gateway.dispatch.pending_placement import PendingPlacement, PlacementDriver
from gateway.dispatch.placer import Placer
from gateway.errors import Rejected
from gateway.routing.decision import SendTo
from gateway.routing.route_request import IncomingRequest
from registry.domain.cluster import ClusterState
from registry.domain.pod_state import (
    Granted,
    LoadMode,
    PodState,
    Refusal,
    ReservationRequest,
    step_reservation_id,
)
from registry.errors import RegistryUnavailable
from registry.redis.client import Registry


@dataclass(eq=False, slots=True)
class Reservation:
    """A slot at the entry pod, but for steps, and a place in the predict pod's inference stage."""

    id: str
    entry: PodState
    predict: PodState
    decision: SendTo
    key: str
    """Of the model generation."""
    load_token: int = 0
    takes_slot: bool = True
    """False: a step, in the entry pod's step queue."""
    is_local: bool = False
    """Counted only in the local state: optimistic, or made without Redis."""
    renewed_at_s: float = 0.0
    """Loop time at which it was taken or last renewed."""
    terms: ReservationRequest = field(init=False)
    """As the registry was asked; unset where it was not."""

    def outlives(self) -> None:
        """It lasts longer than expected of an optimistic one."""

    def add_pending(self, count: int) -> None:
        """Count it in the local state, or, below 0, no more."""
        slots = count if self.takes_slot else 0
        if self.entry is self.predict:
            self.entry.add_pending(slots=slots, ongoing=count)
        else:
            self.entry.add_pending(slots=slots)
            self.predict.add_pending(ongoing=count)


class Placement(PendingPlacement):
    __slots__ = ("decision", "error", "reservation", "wakeup")

    decision: SendTo
    reservation: Reservation
    error: Rejected | None
    wakeup: asyncio.Future[None] | None
    """Done when the request is placed or rejected; None unless it waits for that."""

    def __init__(self, arrival: IncomingRequest, place_at: str = "") -> None:
        super().__init__(arrival, place_at)
        self.error = None
        self.wakeup = None

    async def place(self, placer: Placer[Placement]) -> Placement:
        """Reserve a slot, after a time in the queue if the policy decides so. Raises Rejected."""
        self.error = placer.place(self)
        return await self.placed(placer)

    async def placed(self, placer: Placer[Placement]) -> Placement:
        """As `place`, after the placer's answer."""
        if self.error is None and self.is_pending:
            self.wakeup = asyncio.get_running_loop().create_future()
            try:
                await self.wakeup
            except asyncio.CancelledError:  # perhaps just after it was placed
                if self.is_pending:
                    placer.cancel(self)
                elif self.error is None:
                    placer.release(self)
                raise
            finally:
                self.wakeup = None
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # kept here, or in a frame of its traceback, it would be a cycle
        return self

    def wake(self) -> None:
        if self.wakeup is not None and not self.wakeup.done():  # else it was cancelled meanwhile
            self.wakeup.set_result(None)


TTL_S: Final = 15.0
MAX_OPTIMISTIC_S: Final = 0.01
"""Requests measured to hold their slot no longer than this reserve optimistically."""
REGISTER_AFTER_S: Final = 0.25
COLLISION_PAUSE_S: Final = 5.0
"""Time without optimistic reservations at a pod that refused one."""


class Reservations(PlacementDriver["Placement"]):
    """Takes, renews and releases reservations; owns the pending counts in the local state."""

    def __init__(
        self, registry: Registry, state: ClusterState, gateway_id: str, *, ttl_s: float = TTL_S
    ) -> None:
        self._registry = registry
        self._state = state
        self._gateway_id = gateway_id
        self._ttl_s = ttl_s
        self._counter = 0
        self._loop = asyncio.get_running_loop()
        self._held: set[Reservation] = set()
        """Those that the registry counts, or was to count."""
        self._unregistered: dict[Reservation, None] = {}
        """Optimistic reservations that the registry does not count, oldest first."""
        self._paused_until_s: dict[str, float] = {}
        """Loop time by pod until which no reservation there is optimistic."""
        self._unreleased: list[Reservation] = []
        """Those released without Redis, which still counts them."""

    @property
    def held_total(self) -> int:
        return len(self._held) + len(self._unregistered)

    def reserve(
        self, placement: Placement, decision: SendTo, on_reply: Callable[[Placement, bool], None]
    ) -> bool | None:
        """Reserve, without the registry if a request is short and was not queued.

        The slots count as taken in the local state from this call on.
        """
        placement.decision, key = decision, placement.spec.key
        if placement.queue_key is None:
            optimistic = self._reserve_optimistically(decision, key)
            if optimistic is not None:
                placement.reservation = optimistic
                return True
        pods = self._state.pods
        entry, predict = pods.get(decision.entry), pods.get(decision.predict)
        if entry is None or predict is None:
            return False
        placement.reservation = reservation = Reservation(
            "", entry, predict, decision, key, takes_slot=decision.takes_slot
        )
        self.ask(reservation, partial(on_reply, placement))
        return None

    def ask(self, reservation: Reservation, on_reply: Callable[[bool], None]) -> None:
        """Let the registry count the reservation, if it can.

        `on_reply` gets whether it does, after the current callbacks: they may bring the update that
        led to a refusal.
        """
        terms = reservation.terms = self._terms(reservation.decision, reservation.key)
        reservation.id = self._new_id(terms)
        reservation.add_pending(1)

        def on_result(result: Granted | Refusal | RegistryUnavailable) -> None:
            self._loop.call_soon(on_reply, self._is_granted(reservation, result))

        self._registry.reserve(reservation.id, terms, on_result)

    def on_placed(self, placement: Placement) -> None:
        placement.wake()  # last in `ask`'s callback

    def on_rejected(self, placement: Placement, error: Rejected) -> None:
        placement.error = error
        self._loop.call_soon(placement.wake)

    def _reserve_optimistically(self, decision: SendTo, key: str) -> Reservation | None:
        """Reserve without the registry, if the request is short; None: use `reserve`."""
        if decision.mode is not LoadMode.WARM or decision.target_ongoing:
            return None
        pod = self._state.pods[decision.entry]
        if decision.entry != decision.predict or not self.may_be_optimistic(pod, key):
            return None
        reservation = Reservation("", pod, pod, decision, key, takes_slot=decision.takes_slot)
        self.hold_optimistic(reservation)
        return reservation

    def may_be_optimistic(self, pod: PodState, key: str) -> bool:
        """Whether warm requests there are short, and pass without a collision."""
        times = pod.estimates[key].stages
        if not times.is_measured or times.hold_s > MAX_OPTIMISTIC_S:
            return False
        if not self._paused_until_s:
            return True
        return self._paused_until_s.get(pod.name, 0.0) <= self._loop.time()

    def hold_optimistic(self, reservation: Reservation) -> None:
        self._counter += 1  # by which the pod knows the request if it is resent
        reservation.id = f"{self._gateway_id}:{self._counter}"
        reservation.is_local = True
        reservation.renewed_at_s = self._loop.time()
        reservation.add_pending(1)
        self._unregistered[reservation] = None

    def record_collision(self, reservation: Reservation) -> bool:
        """The pod refused this reservation for lack of a slot.

        Returns True if it was optimistic, so that the registry would have refused it; reservations
        at the pod are then not optimistic for a while. False for one made without Redis: the next
        attempt must back off.
        """
        if reservation not in self._unregistered:
            return False
        now_s = self._loop.time()
        paused = {pod: until_s for pod, until_s in self._paused_until_s.items() if until_s > now_s}
        self._paused_until_s = paused | {reservation.entry.name: now_s + COLLISION_PAUSE_S}
        return True

    def _new_id(self, terms: ReservationRequest) -> str:
        self._counter += 1
        identity = f"{self._gateway_id}:{self._counter}"
        return identity if terms.takes_slot else step_reservation_id(identity, terms.key)

    def _terms(self, decision: SendTo, key: str) -> ReservationRequest:
        return ReservationRequest(
            decision.entry,
            decision.predict,
            key,
            decision.mode,
            decision.max_other_copies,
            decision.target_ongoing,
            self._ttl_s,
            decision.takes_slot,
        )

    def _is_granted(
        self, reservation: Reservation, result: Granted | Refusal | RegistryUnavailable
    ) -> bool:
        if isinstance(result, RegistryUnavailable):
            # the pending counts stay: they are the reservation until it is released
            reservation.is_local = True
        else:
            reservation.add_pending(-1)
            if isinstance(result, Refusal):
                return False
            reservation.load_token = result.load_token
        reservation.renewed_at_s = self._loop.time()
        self._held.add(reservation)
        return True

    def release(self, placement: Placement) -> None:
        """Free the slot and the place in the inference stage.

        The local state changes at once: a client's next request may precede the registry's reply.
        """
        self.release_one(placement.reservation)

    def release_one(self, reservation: Reservation) -> None:
        reservation.add_pending(-1)
        if self._unregistered.pop(reservation, reservation) is not None:
            self._held.discard(reservation)
            if not reservation.is_local:
                self._release_registered(reservation)

    def _release_registered(self, reservation: Reservation) -> None:
        def on_reply(result: object) -> None:
            reservation.add_pending(1)
            if isinstance(result, RegistryUnavailable):
                _count_down(reservation)
                self._unreleased.append(reservation)

        self._registry.release(reservation.id, reservation.terms, on_reply)

    def retry_releases(self) -> None:
        """Repeat releases made without Redis; else a pod's slots stay taken until they expire."""
        unreleased, self._unreleased = self._unreleased, []
        oldest_s = self._loop.time() - self._ttl_s
        for reservation in unreleased:
            if reservation.renewed_at_s > oldest_s:
                self._registry.release(
                    reservation.id, reservation.terms, partial(self._on_retried, reservation)
                )

    def _on_retried(self, reservation: Reservation, result: object) -> None:
        if isinstance(result, RegistryUnavailable):
            self._unreleased.append(reservation)

    async def register_periodically(self) -> None:
        """Register optimistic reservations that last longer than expected, until cancelled."""
        while True:
            await asyncio.sleep(REGISTER_AFTER_S / 2)
            due_s = self._loop.time() - REGISTER_AFTER_S
            for reservation in list(self._unregistered):
                if reservation.renewed_at_s > due_s:
                    break
                reservation.outlives()  # it may have ended others
                if self._unregistered.pop(reservation, reservation) is None:
                    self._register(reservation)

    def _register(self, reservation: Reservation) -> None:
        """A refused registration does not stop the request; it is retried at the next interval."""
        terms = reservation.terms = self._terms(reservation.decision, reservation.key)
        reservation.id = self._new_id(terms)
        self._held.add(reservation)

        def on_reply(result: Granted | Refusal | RegistryUnavailable) -> None:
            is_held = reservation in self._held
            if not isinstance(result, Granted):
                if is_held:
                    self._held.discard(reservation)
                    reservation.renewed_at_s = self._loop.time()
                    self._unregistered[reservation] = None
                return
            reservation.is_local = False
            reservation.add_pending(-1)  # Redis counts it from here on
            if not is_held:
                self._release_registered(reservation)

        self._registry.reserve(reservation.id, terms, on_reply)

    async def renew_periodically(self) -> None:
        """Renew registered reservations before they expire, until cancelled."""
        while True:
            await asyncio.sleep(self._ttl_s / 3)
            due_s = self._loop.time() - self._ttl_s / 3
            for reservation in self._held:
                if reservation.renewed_at_s <= due_s and not reservation.is_local:
                    reservation.renewed_at_s = self._loop.time()
                    self._registry.renew(reservation.id, reservation.terms)

    def restore(self, pod: PodState) -> None:
        """Register a refusing pod's reservations again: the registry may have lost them."""
        for reservation in self._held:
            is_there = reservation.entry.name == pod.name and reservation.takes_slot
            if is_there and not reservation.is_local:
                self._registry.restore(reservation.id, reservation.terms)


def _count_down(reservation: Reservation) -> None:
    """Count a release in the local state until the next snapshot, since Redis cannot."""
    entry, predict = reservation.entry, reservation.predict
    entry.set_counts(max(0, entry.slots_used - reservation.takes_slot), entry.ongoing)
    predict.set_counts(predict.slots_used, max(0, predict.ongoing - 1))
