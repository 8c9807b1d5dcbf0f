"""Reservations this gateway holds: asked for, kept alive while their request runs, given back.

A brief request at a warm pod does not ask: it is over before anybody could act on hearing of it.
It is held in the copy, and told to the registry if it is still there after `TOLD_AFTER_S`. Where
that makes gateways collide (the pod refuses, since pods enforce their own slots), the pod's
requests ask first for a while. With Redis away every reservation is held in the copy alone, and
the next snapshot puts the counts right.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from registry.domain.reservation import Granted, LoadMode, Refusal, ReservationRequest
from registry.errors import RegistryUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.routing.decision import SendTo
    from registry.domain.cluster import ClusterState
    from registry.domain.pod_state import PodState
    from registry.redis.client import Registry

TTL_S: Final = 15.0
BRIEF_S: Final = 0.01
"""A request that is measured to hold its slot no longer than this does not ask first."""
TOLD_AFTER_S: Final = 0.25
ASKING_S: Final = 5.0
"""How long requests to a pod ask first after it had to refuse one that did not."""


@dataclass(eq=False, slots=True)
class Reservation:
    """A slot at the entry pod and a place in the inference stage of the predict pod."""

    id: str
    entry: PodState
    predict: PodState
    start: str
    """`warm`, or the tier the request waits from."""
    load_token: int
    is_local: bool = False
    """Held in the copy alone: brief, or Redis was away."""
    renewed_at_s: float = field(default=0.0)
    """When it was taken or last renewed, on the loop's clock."""


class Reservations:
    """Takes, renews and gives back reservations; owner of the pending counts in the copy."""

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
        self._untold: dict[Reservation, tuple[SendTo, str]] = {}
        """Brief ones the registry does not know of, the oldest first."""
        self._asking_until_s: dict[str, float] = {}
        """Per pod whose requests ask first for now: until when, on the loop's clock."""
        self._unreleased: dict[Reservation, float] = {}
        """Given back while Redis was away, and when: it still counts them."""

    @property
    def held_total(self) -> int:
        """How many reservations this gateway holds now."""
        return len(self._held)

    def take(self, decision: SendTo, key: str) -> asyncio.Future[Reservation | Refusal]:
        """Reserve what a decision wants; a refusal means the copy was out of date.

        The slots count as taken in the copy from this call on. Whoever cancels the future has the
        reservation given back.
        """
        outcome: asyncio.Future[Reservation | Refusal] = self._loop.create_future()
        pods = self._state.pods
        entry, predict = pods.get(decision.entry), pods.get(decision.predict)
        if entry is None or predict is None:
            outcome.set_result(Refusal.GONE)
            return outcome
        wanted = self._request(decision, key)
        entry.slots_pending += 1
        predict.ongoing_pending += 1

        def settle(result: Granted | Refusal | RegistryUnavailable) -> None:
            settled = self._settle(wanted, entry, predict, result)
            if not outcome.done():
                outcome.set_result(settled)
            elif isinstance(settled, Reservation):
                self.give_back(settled)  # whoever asked has left meanwhile

        self._registry.reserve(wanted, settle)
        return outcome

    def take_brief(self, decision: SendTo, key: str) -> Reservation | None:
        """Reserve without asking, where the request is brief; None: ask."""
        if decision.mode is not LoadMode.WARM or decision.target_ongoing:
            return None
        if decision.entry != decision.predict:
            return None
        times = self._state.measured(key).stages
        if not times.is_measured or times.hold_s > BRIEF_S:
            return None
        until_s = self._asking_until_s.get(decision.entry)
        if until_s is not None and until_s > self._loop.time():
            return None
        pod = self._state.pods[decision.entry]
        pod.slots_pending += 1
        pod.ongoing_pending += 1
        reservation = self._hold(Reservation("", pod, pod, "warm", 0, is_local=True))
        self._untold[reservation] = (decision, key)
        return reservation

    def collided(self, reservation: Reservation) -> bool:
        """The pod had no slot for it. Whether asking would have told, and will from now on.

        One that did ask, while Redis was away, is none of these: its next try must wait its time.
        """
        if reservation not in self._untold:
            return False
        now_s = self._loop.time()
        asking = {pod: until_s for pod, until_s in self._asking_until_s.items() if until_s > now_s}
        self._asking_until_s = asking | {reservation.entry.name: now_s + ASKING_S}
        return True

    def _request(self, decision: SendTo, key: str) -> ReservationRequest:
        self._counter += 1
        return ReservationRequest(
            id=f"{self._gateway_id}:{self._counter}",
            entry=decision.entry,
            predict=decision.predict,
            key=key,
            mode=decision.mode,
            max_other_copies=decision.max_other_copies,
            target_ongoing=decision.target_ongoing,
            ttl_s=self._ttl_s,
        )

    def _settle(
        self,
        wanted: ReservationRequest,
        entry: PodState,
        predict: PodState,
        result: Granted | Refusal | RegistryUnavailable,
    ) -> Reservation | Refusal:
        if isinstance(result, RegistryUnavailable):
            # the pending counts stay: they are the reservation until it is given back
            start = _start_without_registry(wanted, self._state)
            return self._hold(Reservation(wanted.id, entry, predict, start, 0, is_local=True))
        entry.slots_pending -= 1
        predict.ongoing_pending -= 1
        if isinstance(result, Refusal):
            return result
        return self._hold(Reservation(wanted.id, entry, predict, result.start, result.load_token))

    def _hold(self, reservation: Reservation) -> Reservation:
        reservation.renewed_at_s = self._loop.time()
        self._held.add(reservation)
        return reservation

    def give_back(self, reservation: Reservation) -> None:
        """Free the slot and the place in the inference stage.

        In the copy they are free at once: a client's next request comes sooner than the reply.
        """
        self._held.discard(reservation)
        entry, predict = reservation.entry, reservation.predict
        entry.slots_pending -= 1
        predict.ongoing_pending -= 1
        if reservation.is_local:
            self._untold.pop(reservation, None)
            return
        self._release(reservation)

    def _release(self, reservation: Reservation) -> None:
        entry, predict = reservation.entry, reservation.predict

        def on_result(result: object) -> None:
            entry.slots_pending += 1
            predict.ongoing_pending += 1
            if isinstance(result, RegistryUnavailable):
                _count_down(reservation)
                self._unreleased[reservation] = self._loop.time()

        self._send_release(reservation, on_result)

    def _send_release(self, reservation: Reservation, on_result: Callable[[object], None]) -> None:
        self._registry.release(
            reservation.id,
            entry=reservation.entry.name,
            predict=reservation.predict.name,
            on_result=on_result,
        )

    def release_again(self) -> None:
        """Redis is heard of: tell it what was given back while it was away and has not expired."""
        if not self._unreleased:
            return
        unreleased, self._unreleased = self._unreleased, {}
        oldest_s = self._loop.time() - self._ttl_s
        for reservation, given_back_s in unreleased.items():
            if given_back_s > oldest_s:
                self._release_again(reservation, given_back_s)

    def _release_again(self, reservation: Reservation, given_back_s: float) -> None:
        def on_result(result: object) -> None:
            if isinstance(result, RegistryUnavailable):
                self._unreleased[reservation] = given_back_s

        self._send_release(reservation, on_result)

    async def tell(self) -> None:
        """Tell the registry of brief reservations that turn out not to be, until cancelled."""
        while True:
            await asyncio.sleep(TOLD_AFTER_S / 2)
            due_s = self._loop.time() - TOLD_AFTER_S
            for reservation, (decision, key) in list(self._untold.items()):
                if reservation.renewed_at_s > due_s:
                    break
                del self._untold[reservation]
                self._tell(reservation, decision, key)

    def _tell(self, reservation: Reservation, decision: SendTo, key: str) -> None:
        """One that is refused, since others were told sooner, runs on and is told of again."""
        wanted = self._request(decision, key)
        reservation.id = wanted.id

        def settle(result: Granted | Refusal | RegistryUnavailable) -> None:
            is_held = reservation in self._held
            if not isinstance(result, Granted):
                if is_held:
                    reservation.renewed_at_s = self._loop.time()
                    self._untold[reservation] = (decision, key)
                return
            reservation.is_local = False
            reservation.entry.slots_pending -= 1  # Redis counts it from here on
            reservation.predict.ongoing_pending -= 1
            if not is_held:
                self._release(reservation)

        self._registry.reserve(wanted, settle)

    async def keep_alive(self) -> None:
        """Renew what is held for long, until cancelled."""
        while True:
            await asyncio.sleep(self._ttl_s / 3)
            due_s = self._loop.time() - self._ttl_s / 3
            for reservation in self._held:
                if reservation.renewed_at_s <= due_s and not reservation.is_local:
                    reservation.renewed_at_s = self._loop.time()
                    self._registry.renew(
                        reservation.id,
                        entry=reservation.entry.name,
                        predict=reservation.predict.name,
                        ttl_s=self._ttl_s,
                    )

    def hold_on(self, pod: PodState) -> None:
        """The pod has fewer slots than the registry says: perhaps it forgot what is held here."""
        for reservation in self._held:
            if reservation.entry.name == pod.name and not reservation.is_local:
                self._registry.restore(
                    reservation.id,
                    entry=reservation.entry.name,
                    predict=reservation.predict.name,
                    ttl_s=self._ttl_s,
                )


def _start_without_registry(wanted: ReservationRequest, state: ClusterState) -> str:
    residency = state.holders(wanted.key).get(wanted.predict)
    if residency is None:
        return "remote"
    return "warm" if residency.is_warm else str(residency.loading_from or residency.tier)


def _count_down(reservation: Reservation) -> None:
    """Redis is away and cannot count: the copy does it, until the next snapshot."""
    reservation.entry.slots_used = max(0, reservation.entry.slots_used - 1)
    reservation.predict.ongoing = max(0, reservation.predict.ongoing - 1)
