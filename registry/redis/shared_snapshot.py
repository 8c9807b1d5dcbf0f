"""One snapshot for many pods: taken by one of them, compressed, kept in Redis for a few seconds.

A thousand pods that reconnect at once would each have Redis assemble the whole state. Instead one
takes a snapshot and stores it; the others read it. A stored snapshot is as good as an own one for a
client that has subscribed before: it needs at least the version that was current when the client
asked first, since every later change is pushed to the client.

The stored snapshot is of the channel `news`, which leaves out counts: gateways take their own.
"""

import asyncio
import logging
import random
import zlib
from itertools import count
from typing import Final

import orjson

from common.backoff import Backoff
from registry.domain.cluster import Snapshot
from registry.errors import RegistryUnavailable
from registry.redis.script import ChannelVersions
from registry.redis.transactions import Transactions

logger = logging.getLogger(__name__)

KEPT_MS: Final = 10_000
_PAUSE: Final = Backoff(initial_s=0.2, max_s=1.6)
"""Between two questions; with a random factor, so that clients that came at once do not ask so."""
_NEXT_AFTER_MS: Final = 500
"""From a stored snapshot until another client may take a newer one."""
_LEVEL: Final = 1
_DIGITS: Final = 20
_KEY: Final = "snapshot"


async def take_shared_snapshot(transactions: Transactions) -> tuple[ChannelVersions, int, Snapshot]:
    """As `Transactions.snapshot`, for a client that is subscribed to `news` and buffers it.

    The version of `changes` is 0 if the snapshot is another client's. Raises RegistryUnavailable.
    """
    at_least = 0
    for attempt in count(1):
        versions, now_ms, answer = await transactions.share_snapshot(at_least)
        at_least = at_least or versions.news
        if answer == "stored":
            found = await _read(transactions, at_least)
            if found is not None:
                return found[0], now_ms, found[1]
        elif answer == "take":
            return await _take_and_store(transactions)
        elif answer == "alone":
            return await transactions.snapshot()
        await asyncio.sleep(_PAUSE.pause_s(attempt) * random.uniform(0.5, 1.5))
    raise AssertionError("unreachable: the count does not end")


async def _take_and_store(transactions: Transactions) -> tuple[ChannelVersions, int, Snapshot]:
    taken = versions, _, snapshot = await transactions.snapshot()
    packed = await asyncio.to_thread(_pack, versions.news, snapshot)
    try:
        await transactions.command("SET", transactions.prefix + _KEY, packed, "PX", str(KEPT_MS))
        await transactions.command("PEXPIRE", transactions.prefix + "sharing", str(_NEXT_AFTER_MS))
    except RegistryUnavailable as error:
        logger.info("snapshot not stored for other pods", extra={"cause": error})
    return taken


async def _read(
    transactions: Transactions, at_least: int
) -> tuple[ChannelVersions, Snapshot] | None:
    """The stored snapshot; None if it expired meanwhile, or was replaced by an older one."""
    packed = await transactions.command("GET", transactions.prefix + _KEY)
    if packed is None or int(packed[:_DIGITS]) < at_least:
        return None
    return ChannelVersions(0, int(packed[:_DIGITS])), await asyncio.to_thread(_unpack, packed)


def _pack(version: int, snapshot: Snapshot) -> bytes:
    """The version in digits, which the script reads, and the snapshot as compressed JSON."""
    return b"%0*d" % (_DIGITS, version) + zlib.compress(orjson.dumps(list(snapshot)), _LEVEL)


def _unpack(packed: bytes) -> Snapshot:
    parts = orjson.loads(zlib.decompress(packed[_DIGITS:]))
    return Snapshot(*parts[: len(Snapshot._fields)])
