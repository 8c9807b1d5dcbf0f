"""Values of reservations and load claims: what is requested, how it is granted or refused."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

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
