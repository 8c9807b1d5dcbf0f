"""What waits to be sent to the script, as the calls of a batch, and what it answers.

Reservations are many, so they are sent without JSON, and alike ones as one call.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import hiredis
import orjson

from registry.domain.pod_state import CLAIM_TTL_S, Granted, LoadMode, Refusal, ReservationRequest
from registry.errors import RegistryRefused

OnResult = Callable[[Any], None]
"""It may get a RegistryUnavailable in place of the result."""

MAX_BATCH: Final = 256
_CLAIM_TTL_MS: Final = int(CLAIM_TTL_S * 1000)
_RANKS: Final = {"release": 1, "reserve": 2}
"""Others come before; `hold` must, since it enters a reservation that may be released since."""
_ANSWERS: Final[dict[bytes, Granted | Refusal]] = {
    b"warm": Granted("warm", 0),
    **{each.value.encode(): each for each in Refusal},
}


class Call:
    """An operation `op` as JSON, or reservations to `reserve`, `release`, `renew` or `hold`."""

    __slots__ = ("name", "on_results", "terms", "texts")

    def __init__(self, name: str, terms: ReservationRequest | None) -> None:
        self.name = name
        self.terms = terms
        self.texts: list[str | bytes] = []
        """The JSON, or ids."""
        self.on_results: list[OnResult] = []
        """As many."""


class CallQueue:
    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._open: dict[tuple[str, ReservationRequest], Call] = {}
        """Those that further reservations join."""

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, operation: bytes, on_result: OnResult) -> None:
        _fill(self._append("op", None), operation, on_result)

    def add_reservation(
        self, name: str, id_: str, terms: ReservationRequest, on_result: OnResult
    ) -> None:
        call = self._open.get((name, terms))
        if call is None or len(call.texts) == MAX_BATCH:
            call = self._append(name, terms)
            if terms.mode is LoadMode.WARM:  # else the first may begin the load that others join
                self._open[name, terms] = call
        _fill(call, id_, on_result)

    def _append(self, name: str, terms: ReservationRequest | None) -> Call:
        call = Call(name, terms)
        self._calls.append(call)
        return call

    def take(self) -> list[Call]:
        """Remove the calls of the next batch: those of `MAX_BATCH` operations at most."""
        self._open.clear()
        self._calls.sort(key=_rank)
        count = operations = 0
        for call in self._calls:
            operations += len(call.texts)
            if operations > MAX_BATCH:
                break
            count += 1
        taken, self._calls = self._calls[:count], self._calls[count:]
        return taken


def _fill(call: Call, text: str | bytes, on_result: OnResult) -> None:
    call.texts.append(text)
    call.on_results.append(on_result)


def _rank(call: Call) -> int:
    return _RANKS.get(call.name, 0)


def encode_batch(calls: Iterable[Call]) -> list[str | bytes | int]:
    """The script's arguments."""
    encoded: list[str | bytes | int] = []
    sent: ReservationRequest | None = None
    for call in calls:
        terms = call.terms
        if terms is not None and terms != sent:
            encoded += (
                "at",
                int(terms.ttl_s * 1000),
                terms.entry,
                terms.predict,
                terms.key,
                terms.mode,
                terms.max_other_copies,
                terms.target_ongoing,
                _CLAIM_TTL_MS,
                int(terms.takes_slot),
            )
            sent = terms
        encoded += (call.name, len(call.texts), *call.texts)
    return encoded


def decode_answer(name: str, answer: Any) -> Any:
    """The result of operations of a call; a RegistryRefused if they failed.

    Of `reserve`: a Refusal or Granted; of others of reservations nothing of interest.
    """
    if isinstance(answer, hiredis.ReplyError):
        return RegistryRefused(str(answer))
    if name == "op":
        return orjson.loads(answer)
    known = _ANSWERS.get(answer)
    if known is not None or not isinstance(answer, bytes):
        return known
    start, _, token = answer.decode().partition(" ")
    return Granted(start, int(token or 0))
