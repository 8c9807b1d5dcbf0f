"""Metrics are read in FastAPI's threads while the event loop counts."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import pytest
from prometheus_client import generate_latest

from gateway.telemetry.metrics import GatewayMetrics, RequestOutcome

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def frequent_thread_switches() -> Iterator[None]:
    """Threads that switch as often as possible."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual_s)


@pytest.mark.usefixtures("frequent_thread_switches")
def test_metrics_can_be_read_while_requests_are_counted() -> None:
    metrics = GatewayMetrics()

    def count() -> None:
        for number in range(4_000):
            metrics.outcomes.add(RequestOutcome(f"m{number}", "auto", "warm", "warm", 200))
            metrics.durations.labels(f"policy-{number}").observe(0.1)

    counting = threading.Thread(target=count)
    counting.start()
    try:
        while counting.is_alive():
            generate_latest(metrics.registry)
    finally:
        counting.join()
