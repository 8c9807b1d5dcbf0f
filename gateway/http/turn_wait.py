"""Refuses requests that have waited too long to be begun, before any work for them.

Where more requests come than the gateway can route, they wait in its accept queue and for their
turn. With deadlines that queue would become as long as they are, so that all responses are late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.errors import Rejected
from gateway.routing.decision import Reason

if TYPE_CHECKING:
    from gateway.http.inference_client import InferenceClient

MAX_WAIT_SHARE: Final = 0.5
"""Of a request's deadline, after which it is not begun any more."""


def check_wait(client: InferenceClient, deadline_s: float | None) -> None:
    """Raises Rejected."""
    if deadline_s is not None and client.waited_s > MAX_WAIT_SHARE * deadline_s:
        raise Rejected(
            Reason.DEADLINE,
            f"the request had not begun {client.waited_s:.3f} s after it came: too late for its"
            f" deadline of {deadline_s:g} s",
            retry_after_s=1.0,
        )
