"""Requests with which pods were lost: one that lost two is refused for a while, by its digest.

A pod that dies takes innocent requests with it, so each of them is tried once more; a response
acquits a request, also one that others send with the same body. Pods lost at the same moment, as
with their node, prove nothing: one such request is tried again after a few seconds.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.errors import RequestLostPods

MAX_PODS: Final = 2
PAUSE_S: Final = 300.0
TRIAL_S: Final = 5.0
_MAX_RECORDS: Final = 1024


@dataclass(slots=True)
class _Record:
    size: int
    until_s: float
    first_loss: int
    """Number of the first loss; an attempt begun later was a risk taken knowingly."""
    is_proven: bool = False
    """True if an attempt begun after the first loss lost a pod too."""
    refused_until_s: float = 0.0
    pods: set[str] = field(default_factory=set)


class LostPods:
    """By digest of path, size and the body's part in memory: the pods lost with such a request."""

    def __init__(self, now_s: Callable[[], float], pause_s: float = PAUSE_S) -> None:
        self._now_s = now_s
        self._pause_s = pause_s
        self.records: OrderedDict[bytes, _Record] = OrderedDict()
        """Without any, no request needs to be looked at."""
        self.losses = 0
        """Attempts so far, of any request, that lost their pod: one pod counts for each of them.

        A call remembers it when an attempt begins.
        """

    def check(self, path: bytes, body: Sequence[bytes], size: int) -> None:
        """Raises RequestLostPods for a request that lost two pods lately, but for one to try."""
        found = self._find(path, body, size)
        if found is None or len(found[1].pods) < MAX_PODS:
            return
        record, now_s = found[1], self._now_s()
        if now_s < record.refused_until_s:
            raise self._error(record)
        record.refused_until_s = now_s + TRIAL_S  # others wait for this one's response

    def record(
        self, path: bytes, body: Sequence[bytes], size: int, *, pod: str, begun: int
    ) -> None:
        """Count an attempt that lost its pod. Raises RequestLostPods from the second pod on.

        `begun`: `losses` when the attempt began.
        """
        self.losses += 1
        digest = _digest(path, body, size)
        now_s = self._now_s()
        record = self.records.pop(digest, None)
        if record is None or record.until_s <= now_s:
            record = _Record(size, now_s, self.losses)
        record.pods.add(pod)
        record.until_s = now_s + self._pause_s
        record.is_proven |= record.first_loss <= begun
        pause_s = self._pause_s if record.is_proven else min(TRIAL_S, self._pause_s)
        record.refused_until_s = now_s + pause_s
        self.records[digest] = record
        if len(self.records) > _MAX_RECORDS:
            self.records.popitem(last=False)
        if len(record.pods) >= MAX_PODS:
            raise self._error(record) from None

    def acquit(self, path: bytes, body: Sequence[bytes], size: int) -> None:
        """A pod has responded to such a request."""
        found = self._find(path, body, size)
        if found is not None:
            del self.records[found[0]]

    def _find(self, path: bytes, body: Sequence[bytes], size: int) -> tuple[bytes, _Record] | None:
        """The record, if any; computes a digest only if a record has the body's length."""
        if not self.records:
            return None
        now_s = self._now_s()
        while self.records and next(iter(self.records.values())).until_s <= now_s:
            self.records.popitem(last=False)
        if all(record.size != size for record in self.records.values()):
            return None
        digest = _digest(path, body, size)
        record = self.records.get(digest)
        return None if record is None else (digest, record)

    def _error(self, record: _Record) -> RequestLostPods:
        wait_s = max(0.0, record.refused_until_s - self._now_s())
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
