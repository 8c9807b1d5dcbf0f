"""The admission queue without a dispatcher: timeouts."""

from __future__ import annotations

import pytest

from gateway.dispatch.admission_queue import AdmissionQueue, QueuedRequest
from gateway.routing.decision import Reason
from gateway.routing.route_request import IncomingRequest
from tests.gateway.cluster_states import NOW_S, cluster, declare


@pytest.mark.parametrize("elapsed_s", [9.995, 10.0, 11.0], ids=["early", "on-time", "late"])
@pytest.mark.parametrize(
    ("deadline_in_s", "reason"),
    [
        pytest.param(10.0, Reason.DEADLINE, id="deadline"),
        pytest.param(40.0, Reason.QUEUE_TIMEOUT, id="queue-timeout"),
        pytest.param(None, Reason.QUEUE_TIMEOUT, id="no-deadline"),
    ],
)
def test_the_timeout_error_names_the_nearer_limit_at_any_clock(
    deadline_in_s: float | None, reason: Reason, elapsed_s: float
) -> None:
    now_s = NOW_S
    state = cluster()
    spec = declare(state, queue_timeout_s=20.0)
    queue: AdmissionQueue[QueuedRequest] = AdmissionQueue(state, lambda: now_s)
    deadline_s = None if deadline_in_s is None else NOW_S + deadline_in_s
    request = IncomingRequest("r", spec.name, NOW_S, 0.0, 1, deadline_s=deadline_s)
    queued = QueuedRequest(request, queue.admit(request)[1])
    queue.enqueue(queued, queue.route(request))
    assert queue.timeout_s(queued, spec) == min(20.0, deadline_in_s or 20.0)
    now_s = NOW_S + elapsed_s
    assert queue.timeout_error(queued, spec).reason is reason
