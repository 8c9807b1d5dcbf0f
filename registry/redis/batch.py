"""The operations of a batch as arguments of the script, and what it answers.

Reservations are many, so they are sent without JSON.
"""

from collections.abc import Iterable
from typing import Any, Final

import hiredis
import orjson

from registry.domain.reservation import CLAIM_TTL_S, Granted, LoadMode, Refusal, ReservationRequest
from registry.errors import RegistryRefused

Operation = bytes | tuple[str, str, ReservationRequest]
"""As JSON, so that arguments that JSON cannot express fail at the caller, not in a batch. Or of a
reservation: `reserve`, `release`, `renew` or `hold`, its id, its terms."""

_CLAIM_TTL_MS: Final = int(CLAIM_TTL_S * 1000)
_ANSWERS: Final[dict[bytes, Granted | Refusal]] = {
    b"warm": Granted("warm", 0), **{each.value.encode(): each for each in Refusal}
}  # fmt: skip


def encode_batch(operations: Iterable[Operation]) -> list[str | bytes | int]:
    """In this order; reservations of the same terms that follow each other are one operation."""
    encoded: list[Any] = []
    last, sent, count_at = "", None, 0
    for operation in operations:
        if isinstance(operation, bytes):
            encoded += ("op", operation)
            last = ""
            continue
        name, id_, terms = operation
        is_same = terms is sent or terms == sent
        if is_same and name == last and (terms.mode is LoadMode.WARM or name != "reserve"):
            encoded[count_at] += 1
            encoded.append(id_)
            continue
        if not is_same:
            encoded += (
                "at", int(terms.ttl_s * 1000), terms.entry, terms.predict, terms.key, terms.mode,
                terms.max_other_copies, terms.target_ongoing, _CLAIM_TTL_MS, int(terms.takes_slot),
            )  # fmt: skip
        count_at = len(encoded) + 1
        encoded += (name, 1, id_)
        last, sent = name, terms
    return encoded


def decode_answer(operation: Operation, answer: Any) -> Any:
    """The result of one operation; a RegistryRefused if it failed.

    Of `reserve`: a Refusal or Granted; of other operations of reservations nothing of interest.
    """
    if isinstance(answer, hiredis.ReplyError):
        return RegistryRefused(str(answer))
    if isinstance(operation, bytes):
        return orjson.loads(answer)
    known = _ANSWERS.get(answer)
    if known is not None or not isinstance(answer, bytes):
        return known
    start, _, token = answer.decode().partition(" ")
    return Granted(start, int(token or 0))
