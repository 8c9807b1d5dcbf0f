"""Error responses that Knative's queue-proxy sends in place of the pod's container.

Every response of the container carries `x-pilotlight-pod`; these do not. Source: `pkg/queue` of
knative.dev/serving 0.48: 502 with Go's error text when the container does not respond, 503 when
`containerConcurrency` and its queue are full.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

FAILURE_STATUSES: Final = frozenset((502, 503))
"""Other statuses, such as 504 after the pool's `timeout`, are passed to the client unchanged."""
MAX_BODY_BYTES: Final = 4096
"""Bytes to read of such a response, which is one line of text."""


class QueueProxyFailure(StrEnum):
    """Why the container sent no response."""

    NOT_REACHED = "not-reached"
    """Nothing listens behind the queue-proxy: the container did not get the request."""
    BROKEN = "broken-off"
    """The connection to the container broke: the request may have been executed."""
    FULL = "full"
    """More requests than `containerConcurrency`: the container did not get the request."""


def classify_failure(status: int, body: bytes) -> QueueProxyFailure:
    """Classify a response without `x-pilotlight-pod` and with one of `FAILURE_STATUSES`."""
    if status == 503:
        return QueueProxyFailure.FULL
    if body.startswith(b"dial "):
        return QueueProxyFailure.NOT_REACHED
    return QueueProxyFailure.BROKEN
