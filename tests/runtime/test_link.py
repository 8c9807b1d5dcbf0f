"""The link rate: the sum over all downloads keeps to it."""

from __future__ import annotations

import pytest

from runtime.link import LinkRate


class Clock:
    """Virtual time that passes only in sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_bytes_take_their_time() -> None:
    clock = Clock()
    link = LinkRate(1000, burst_s=0.05, clock=lambda: clock.now_s, sleep=clock.sleep)
    for _ in range(20):
        link.take(100)
    assert clock.now_s - 100 == pytest.approx(2.0, abs=0.06)


def test_short_pauses_are_made_up() -> None:
    clock = Clock()
    link = LinkRate(1000, burst_s=0.05, clock=lambda: clock.now_s, sleep=clock.sleep)
    for _ in range(20):
        link.take(100)
        clock.sleep(0.03)  # the reader writes to disk
    assert clock.now_s - 100 == pytest.approx(2.03, abs=0.06)


def test_no_rate_means_no_wait() -> None:
    LinkRate(None, sleep=lambda _: pytest.fail("must not wait")).take(10**12)
