"""Requests with which pods were lost: one that lost two is refused for a while, by its digest.

A pod that dies takes innocent requests with it, so each of them is tried once more; a response
acquits a request, also one that others send with the same body.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gateway.errors import RequestLostPods

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_PODS: Final = 2
PAUSE_S: Final = 300.0
_MAX_RECORDS: Final = 1024


@dataclass(slots=True)
class _Record:
    size: int
    until_s: float
    pods: set[str] = field(default_factory=set)


class LostPods:
    """By digest of path, size and the body's part in memory: the pods lost with such a request."""

    def __init__(self, now_s: Callable[[], float], pause_s: float = PAUSE_S) -> None:
        self._now_s = now_s
        self._pause_s = pause_s
        self._records: OrderedDict[bytes, _Record] = OrderedDict()

    def check(self, path: bytes, body: Sequence[bytes], size: int) -> None:
        """Raises RequestLostPods for a request that lost two pods lately."""
        found = self._find(path, body, size)
        if found is not None and len(found[1].pods) >= MAX_PODS:
            raise self._error(found[1])

    def record(
        self, path: bytes, body: Sequence[bytes], size: int, *, pod: str
    ) -> RequestLostPods | None:
        """Count a lost pod; the error if the request has lost too many."""
        digest = _digest(path, body, size)
        now_s = self._now_s()
        record = self._records.pop(digest, None)
        if record is None or record.until_s <= now_s:
            record = _Record(size, now_s)
        record.pods.add(pod)
        record.until_s = now_s + self._pause_s
        self._records[digest] = record
        if len(self._records) > _MAX_RECORDS:
            self._records.popitem(last=False)
        return self._error(record) if len(record.pods) >= MAX_PODS else None

    def acquit(self, path: bytes, body: Sequence[bytes], size: int) -> None:
        """A pod has responded to such a request."""
        found = self._find(path, body, size)
        if found is not None:
            del self._records[found[0]]

    def _find(self, path: bytes, body: Sequence[bytes], size: int) -> tuple[bytes, _Record] | None:
        """The record, if any; computes a digest only if a record has the body's length."""
        if not self._records:
            return None
        now_s = self._now_s()
        while self._records and next(iter(self._records.values())).until_s <= now_s:
            self._records.popitem(last=False)
        if all(record.size != size for record in self._records.values()):
            return None
        digest = _digest(path, body, size)
        record = self._records.get(digest)
        return None if record is None else (digest, record)

    def _error(self, record: _Record) -> RequestLostPods:
        wait_s = record.until_s - self._now_s()
        return RequestLostPods(
            f"{len(record.pods)} pods were lost with this request;"
            f" it is refused for {wait_s:.0f} s",
            retry_after_s=wait_s,
        )


def _digest(path: bytes, body: Sequence[bytes], size: int) -> bytes:
    digest = hashlib.sha256(b"%b %d " % (path, size))
    for chunk in body:
        digest.update(chunk)
    return digest.digest()
