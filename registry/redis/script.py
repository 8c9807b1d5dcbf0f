"""The server-side script that runs batches of operations, and the parts of a pool's snapshot.

Model declarations are read by separate commands. Lua 5.1 hashes only some 32 bytes of a string, and
the specifications of many models agree in these: with 50,000 models, the script would compare each
specification with thousands of others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from registry.domain.cluster import Snapshot
from registry.errors import RegistryRefused
from registry.redis.redis_connection import RedisConnection

_SNAPSHOT_HASHES: Final = (
    "models",
    "previous",
    "failures",
    "profiles",
    "applications",
    "accuracies",
)


@dataclass(frozen=True, slots=True)
class ChannelVersions:
    """Latest version of each channel: `changes` has every change, `news` leaves out counts."""

    changes: int
    news: int


def _parts() -> list[bytes]:
    folder = resources.files("registry.redis") / "scripts"
    found = [part for part in folder.iterdir() if part.name.endswith(".lua")]
    return [part.read_bytes() for part in sorted(found, key=lambda part: part.name)]


class ServerScript:
    """The script for the keys of one pool."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        shared, reservations, *others, run = _parts()
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
                connection.call_with_callback(_ignore, "SCRIPT", "LOAD", self._source)
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
    wanted, expected, placement, steps, *_ = (*latest, None, None, None, None)
    models, previous, failures, profiles, applications, accuracies = map(_texts, hashes)
    return Snapshot(
        pods=pods,
        models=[
            (name, (spec, previous.get(name, False), failures.get(name, False)))
            for name, spec in models.items()
        ],
        samples=samples,
        profiles=[each for pair in profiles.items() for each in pair],
        wanted=wanted,
        expected=expected,
        applications=[*applications.items()],
        accuracies=[*accuracies.items()],
        placement=placement,
        steps=steps,
    )


def _texts(pairs: Sequence[bytes]) -> dict[str, str]:
    texts = [each.decode() for each in pairs]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _ignore(reply: Any) -> None:
    del reply
