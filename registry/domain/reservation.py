"""What a reservation is: what is asked for, and how it is granted or refused. Value types only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LoadMode(StrEnum):
    """What a reservation accepts at its predict pod."""

    WARM = "warm"
    JOIN = "join"
    LOAD = "load"


@dataclass(frozen=True, slots=True)
class ReservationRequest:
    """A slot at `entry` and a place in the inference stage of `predict`, wanted together."""

    id: str
    entry: str
    predict: str
    key: str
    mode: LoadMode
    max_other_copies: int = -1
    """With `LoadMode.LOAD`: claim only while no more other pods hold or load it; -1: any."""
    target_ongoing: int = 0
    """Most requests in the predict pod's inference stage; 0: any."""
    ttl_s: float = 15.0


@dataclass(frozen=True, slots=True)
class Granted:
    """The reservation stands."""

    start: str
    """`warm`, or the tier the request will have waited from."""
    load_token: int
    """Fencing token of the load this reservation claimed at the predict pod; 0: none."""


class Refusal(StrEnum):
    """Why a reservation was not made: the copy the policy saw was out of date."""

    GONE = "gone"
    FULL = "full"
    BUSY = "busy"
    COLD = "cold"
    ELSEWHERE = "elsewhere"
