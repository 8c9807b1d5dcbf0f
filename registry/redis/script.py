"""The server-side script: the calls of a batch to it, its answers, and the parts of a snapshot.

Model declarations are read by separate commands. Lua 5.1 hashes only some 32 bytes of a string, and
the specifications of many models agree in these: with 50,000 models, the script would compare each
specification with thousands of others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import hiredis
import orjson

from registry.domain.cluster import Snapshot
from registry.domain.pod_state import CLAIM_TTL_S, Granted, LoadMode, Refusal, ReservationRequest
from registry.errors import RegistryRefused
from registry.redis.redis_connection import RedisConnection

_SNAPSHOT_HASHES: Final = (
    "models", "previous", "failures", "profiles", "applications", "accuracies",
)  # fmt: skip
_LATEST: Final = ("wanted", "expected", "placement", "steps", "speeds", "tenants")
"""Parts of a snapshot after pods and samples, in the script's order."""


@dataclass(frozen=True, slots=True)
class ChannelVersions:
    """Latest version of each channel: `changes` has every change, `news` leaves out counts."""

    changes: int
    news: int


def script_parts() -> list[bytes]:
    """The files of `scripts/`, in order."""
    folder = resources.files("registry.redis") / "scripts"
    found = [part for part in folder.iterdir() if part.name.endswith(".lua")]
    return [part.read_bytes() for part in sorted(found, key=lambda part: part.name)]


class ServerScript:
    """The script for the keys of one pool."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        shared, reservations, *others, run = script_parts()
        define = (b"function define_others()", b"if remove_pod then return end", *others, b"end")
        self._source = b"\n".join((shared, reservations, *define, run))
        self._sha = hashlib.sha1(self._source, usedforsecurity=False).hexdigest()

    async def load(self, connection: RedisConnection) -> None:
        """Have the server know the script.

        Until version 7 each load goes to its file, and clients reconnect while a disk is full.
        """
        if await connection.call("SCRIPT", "EXISTS", self._sha) != [1]:
            await connection.call("SCRIPT", "LOAD", self._source)

    def run(
        self,
        connection: RedisConnection,
        arguments: Sequence[str | bytes | int],
        origin: str,
        on_reply: Callable[[Any], None],
        *reads: Sequence[str],
    ) -> None:
        """Run a batch, by `encode_batch`; loads the script if the server does not have it.

        With `reads`, commands that see what the batch wrote and nothing later, `on_reply` gets the
        replies of all in a list.
        """
        command = ("EVALSHA", self._sha, "1", self._prefix, origin, *arguments)

        def send(on_reply: Callable[[Any], None]) -> None:
            if reads:
                connection.call_transaction(on_reply, command, *reads)
            else:
                connection.call_with_callback(on_reply, *command)

        def load_if_missing(reply: Any) -> None:
            if isinstance(reply, RegistryRefused) and reply.code == "NOSCRIPT":
                connection.call_with_callback(lambda _: None, "SCRIPT", "LOAD", self._source)
                send(on_reply)
            else:
                on_reply(reply)

        send(load_if_missing)

    def snapshot_reads(self) -> list[tuple[str, str]]:
        """The commands that read what the script's `snapshot` leaves out."""
        return [("HGETALL", self._prefix + name) for name in _SNAPSHOT_HASHES]


def read_snapshot(parts: Sequence[Any], hashes: Sequence[Sequence[bytes]]) -> Snapshot:
    """What the script's `snapshot` returned, and the replies to `snapshot_reads`."""
    pods, samples, *latest = parts
    models, previous, failures, profiles, applications, accuracies = map(_texts, hashes)
    return Snapshot(
        pods=pods,
        models=[
            (name, (spec, previous.get(name, False), failures.get(name, False)))
            for name, spec in models.items()
        ],
        samples=samples,
        profiles=[each for pair in profiles.items() for each in pair],
        applications=[*applications.items()],
        accuracies=[*accuracies.items()],
        **dict(zip(_LATEST, latest, strict=False)),  # an older script returns fewer
    )


def _texts(pairs: Sequence[bytes]) -> dict[str, str]:
    texts = [each.decode() for each in pairs]
    return dict(zip(texts[::2], texts[1::2], strict=True))


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
    """Calls of the next batch. Reservations are many: without JSON, and alike ones as one call."""

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
        self._calls.sort(key=lambda call: _RANKS.get(call.name, 0))
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
