"""Answers that Knative's queue-proxy gives by itself, in place of the pod behind it.

Every answer of a pod carries `x-pilotlight-pod`; these do not. Source: knative.dev/serving 0.48,
`pkg/queue`: 502 with Go's error when the container gives no answer, 503 when `containerConcurrency`
and the queue that belongs to it are full.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

STATUSES: Final = frozenset((502, 503))
"""Others than these, such as 504 after the pool's `timeout`, are for the caller as they are."""
LONGEST_BYTES: Final = 4096
"""Such an answer is a line of text."""


class Unanswered(StrEnum):
    """Why there is no answer of the pod."""

    NOT_REACHED = "not-reached"
    """Nothing listens behind the queue-proxy: the request was not handed over."""
    BROKEN_OFF = "broken-off"
    """The connection to the container broke: it may have executed the request."""
    FULL = "full"
    """More requests than `containerConcurrency`: the request was not handed over."""


def read_queue_proxy(status: int, body: bytes) -> Unanswered:
    """What an answer without `x-pilotlight-pod` and with one of `STATUSES` means."""
    if status == 503:
        return Unanswered.FULL
    return Unanswered.NOT_REACHED if body.startswith(b"dial ") else Unanswered.BROKEN_OFF
