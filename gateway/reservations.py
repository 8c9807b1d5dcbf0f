"""Reservations this gateway holds: asked for, kept alive while their request runs, given back.

With Redis away a reservation is held in the copy alone: pods enforce their own slots, and the next
snapshot puts the counts right.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from registry.errors import RegistryUnavailable
from registry.reservation import Granted, Refusal, ReservationRequest

if TYPE_CHECKING:
    from gateway.policies.decision import SendTo
    from registry.client import Registry
    from registry.cluster import ClusterState, PodState

TTL_S: Final = 15.0


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
    """Held in the copy alone, since Redis was away."""
    renewed_at_s: float = field(default=0.0)


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
        self._held: set[Reservation] = set()
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
        outcome: asyncio.Future[Reservation | Refusal] = asyncio.get_running_loop().create_future()
        pods = self._state.pods
        entry, predict = pods.get(decision.entry), pods.get(decision.predict)
        if entry is None or predict is None:
            outcome.set_result(Refusal.GONE)
            return outcome
        self._counter += 1
        wanted = ReservationRequest(
            id=f"{self._gateway_id}:{self._counter}",
            entry=entry.name,
            predict=predict.name,
            key=key,
            mode=decision.mode,
            max_other_copies=decision.max_other_copies,
            target_ongoing=decision.target_ongoing,
            ttl_s=self._ttl_s,
        )
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
        reservation.renewed_at_s = asyncio.get_running_loop().time()
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
            return

        def on_result(result: object) -> None:
            entry.slots_pending += 1
            predict.ongoing_pending += 1
            if isinstance(result, RegistryUnavailable):
                _count_down(reservation)
                self._unreleased[reservation] = asyncio.get_running_loop().time()

        self._registry.release(
            reservation.id, entry=entry.name, predict=predict.name, on_result=on_result
        )

    def release_again(self) -> None:
        """Redis is heard of: tell it what was given back while it was away and has not expired."""
        if not self._unreleased:
            return
        unreleased, self._unreleased = self._unreleased, {}
        oldest_s = asyncio.get_running_loop().time() - self._ttl_s
        for reservation, given_back_s in unreleased.items():
            if given_back_s > oldest_s:
                self._release_again(reservation, given_back_s)

    def _release_again(self, reservation: Reservation, given_back_s: float) -> None:
        def on_result(result: object) -> None:
            if isinstance(result, RegistryUnavailable):
                self._unreleased[reservation] = given_back_s

        self._registry.release(
            reservation.id,
            entry=reservation.entry.name,
            predict=reservation.predict.name,
            on_result=on_result,
        )

    async def keep_alive(self) -> None:
        """Renew what is held for long, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._ttl_s / 3)
            due_s = loop.time() - self._ttl_s / 3
            for reservation in self._held:
                if reservation.renewed_at_s <= due_s and not reservation.is_local:
                    reservation.renewed_at_s = loop.time()
                    self._registry.renew(
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
